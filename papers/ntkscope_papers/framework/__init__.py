"""What experiments are made of: configurations, legs, claims and their verdicts, figures, pages."""

from ntkscope_papers.framework.experiment import Experiment, Scales, experiment, scaled
from ntkscope_papers.framework.published import Published

__all__ = ["Experiment", "Published", "Scales", "experiment", "scaled"]

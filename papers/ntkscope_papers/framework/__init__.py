"""What experiments are made of: configurations, legs, claims and their verdicts, figures, pages."""

from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Reading, claim, claims_of, lacking
from ntkscope_papers.framework.experiment import Experiment, Run, figure, leg

__all__ = ["Experiment", "Reading", "Run", "claim", "claims_of", "drawing", "figure", "lacking", "leg"]

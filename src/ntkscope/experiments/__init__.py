"""Experiments: one published result per file, each with a smoke and a paper scale, verdicts on its claims and figures."""

from ntkscope.core.registry import import_parts
from ntkscope.experiments._published import Published
from ntkscope.experiments._runner import run
from ntkscope.experiments.registry import EXPERIMENTS, Experiment, experiment

import_parts(__name__, __path__, but=("pages",))  # which is a program

__all__ = ["EXPERIMENTS", "Experiment", "Published", "experiment", "run"]

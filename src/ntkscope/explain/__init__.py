"""Which training points support a prediction, and which of them look wrong."""

from __future__ import annotations

from ntkscope.explain import forensics
from ntkscope.explain.attribution import Attribution, attribute
from ntkscope.explain.detection import Detection, auroc, precision_at, score
from ntkscope.explain.distribution import ClassSummary, Concentration, class_summary, concentration
from ntkscope.explain.examples import Nearest, nearest
from ntkscope.explain.influence import self_influence
from ntkscope.explain.mislabels import Ranking, mislabelled
from ntkscope.explain.pictures import attribution_figure, neighbour_grid

__all__ = [
    "Attribution",
    "ClassSummary",
    "Concentration",
    "Detection",
    "Nearest",
    "Ranking",
    "attribute",
    "attribution_figure",
    "auroc",
    "class_summary",
    "concentration",
    "forensics",
    "mislabelled",
    "nearest",
    "neighbour_grid",
    "precision_at",
    "score",
    "self_influence",
]

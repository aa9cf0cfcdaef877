"""Which training points support a prediction, what would change without them, and which of them look wrong."""

from __future__ import annotations

from ntkscope.core.checked import check_room
from ntkscope.explain import forensics
from ntkscope.explain.attribution import attribute
from ntkscope.explain.detection import auroc, precision_at, score
from ntkscope.explain.distribution import class_summary, concentration
from ntkscope.explain.examples import nearest
from ntkscope.explain.mislabels import mislabelled
from ntkscope.explain.probes import ProbeProtocol, layer_probe, probes
from ntkscope.explain.removal.influences import average
from ntkscope.explain.removal.retraining import influence, removal_effects
from ntkscope.explain.two_sample.shift import shift

__all__ = [
    "ProbeProtocol",
    "attribute",
    "auroc",
    "average",
    "class_summary",
    "concentration",
    "forensics",
    "influence",
    "layer_probe",
    "mislabelled",
    "nearest",
    "precision_at",
    "probes",
    "removal_effects",
    "score",
    "shift",
]

check_room(__name__, squares="concentration influence", classes="ProbeProtocol")

"""Training: `fit` one network or an ensemble, in chosen modes, and search over settings by cross-validation.

>>> import torch
>>> from ntkscope.core import Part
>>> part = Part(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]))
>>> fit(torch.nn.Linear(1, 2), part, lr=1.0, steps=20).final().metrics["accuracy"]
1.0
"""

from ntkscope.core.checked import check_room
from ntkscope.training.augment import CropFlip, Translate
from ntkscope.training.ensembles.ensemble import fit_ensemble
from ntkscope.training.evaluation import evaluate
from ntkscope.training.fit import fit
from ntkscope.training.losses import CrossEntropy
from ntkscope.training.modes import Phase, first_last, reg, reinit, stop_first
from ntkscope.training.moments import Every, LogSpaced
from ntkscope.training.replays.loop import Loop
from ntkscope.training.replays.replay import replay
from ntkscope.training.schedules import Cosine, LearningRateSteps, Triangular
from ntkscope.training.search import folds, search
from ntkscope.training.settings import Settings
from ntkscope.training.snapshots import load_snapshot, restore, save_snapshot
from ntkscope.training.stopping import StopWhen
from ntkscope.training.store import SnapshotStore
from ntkscope.training.transfer.adapt import adapt, adaptation

__all__ = [
    "Cosine",
    "CropFlip",
    "CrossEntropy",
    "Every",
    "LearningRateSteps",
    "LogSpaced",
    "Loop",
    "Phase",
    "Settings",
    "SnapshotStore",
    "StopWhen",
    "Translate",
    "Triangular",
    "adapt",
    "adaptation",
    "evaluate",
    "first_last",
    "fit",
    "fit_ensemble",
    "folds",
    "load_snapshot",
    "reg",
    "reinit",
    "replay",
    "restore",
    "save_snapshot",
    "search",
    "stop_first",
]

check_room(
    __name__,
    classes="Cosine CropFlip CrossEntropy Every LearningRateSteps LogSpaced Phase Settings SnapshotStore StopWhen Translate"
    " Triangular",
)

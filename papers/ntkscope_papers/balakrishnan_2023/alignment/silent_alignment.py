"""Balakrishnan (2023), Figures 8 to 19: does the tangent kernel align before the loss falls, and when do the weights turn?

One hidden ReLU layer on polynomials of a hidden direction, and on two classes of images. Width, rates and epochs, which the
text leaves open, are those of its public code; the kernel machine is ridge regression with its strength chosen on validation
points at every moment, where the text has a support vector regression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.alignment import claims
from ntkscope_papers.balakrishnan_2023.alignment.figures import array_name, draw
from ntkscope_papers.balakrishnan_2023.alignment.path import Path, follow
from ntkscope_papers.balakrishnan_2023.alignment.summary import summary
from ntkscope_papers.balakrishnan_2023.alignment.tasks import BY_AUTHORS, TASKS, Task
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs

NAME = "silent-alignment"


@dataclass(frozen=True)
class SilentAlignment(Experiment):
    """Hidden directions, Figures 8–19: cosines, tangent machines, kernel alignment and loss on one axis of epochs.

    `moments` an epoch for `followed` epochs, then one up to `watched`; training ends after at most `epochs`.

    `points` of the training items make the kernels of every moment, `most_points` those of whole epochs. `strengths` of the
    ridge are multiples of the centred kernel's mean diagonal. `rates` of AdaDelta: the first is judged. `small`: the standard
    deviation of a small start's weights, times the root of the fan-in. `draws`: permutations of a test.
    `drawn`: the tasks that have figures of their own.
    """

    name = NAME
    statements = claims_of(claims)
    free = ("seeds", "draws", "drawn")

    seeds: int = 10
    dimension: int = 100
    width: int = 512
    target: str = "raw"
    noise: float = 0.0
    train_items: int = 8000
    validation_items: int = 1000
    test_items: int = 1000
    batch: int = 32
    rates: tuple[float, ...] = (1.0, 0.1)
    epochs: int = 200
    patience: int = 50
    pictures: tuple[str, ...] = ("mnist", "cifar10")
    image_lr: float = 0.001
    small: float = 0.01
    moments: int = 10
    followed: int = 20
    watched: int = 40
    points: int = 2000
    most_points: int = 8000
    strengths: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
    draws: int = 9999
    drawn: tuple[str, ...] = tuple(one.name for one in TASKS)

    smoke = {
        "seeds": 3,
        "dimension": 8,
        "width": 16,
        "train_items": 96,
        "validation_items": 32,
        "test_items": 32,
        "batch": 16,
        "epochs": 6,
        "patience": 5,
        "pictures": ("digits", "digits"),
        "image_lr": 0.02,
        "moments": 3,
        "followed": 3,
        "watched": 5,
        "points": 48,
        "most_points": 96,
        "strengths": (1e-4, 1e-2, 1.0),
        "draws": 199,
        "drawn": ("d7", "mnist/small"),
    }

    def measure(self, run: Run) -> None:
        legs = [
            Leg(
                one.name,
                partial(leg, self, run.record, one, run.root, run.seed, run.device),
                optional=one in BY_AUTHORS,
            )
            for one in (*TASKS, *BY_AUTHORS)
        ]
        run_legs(run.record, legs, self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def leg(config: SilentAlignment, record: Record, one: Task, root: str | None, seed: int, device: torch.device) -> Any:
    """Networks of one task, stacked: what was measured of them, by seed; the series themselves as arrays."""
    path = follow(config, one, range(seed, seed + config.seeds), root, device)
    _keep(record, one, path)
    return summary(config, path)


def _keep(record: Record, one: Task, path: Path) -> None:
    """The series (loss, alignment; members, moments), cosines and predictions of a path, for figures."""
    record.array(array_name(one.name, "times"), path.times)
    record.array(array_name(one.name, "series"), np.stack([path.losses, path.alignments]))
    if path.cosines is not None and path.ending is not None:
        every = np.concatenate([path.cosines, path.ending[:, None]], axis=1)
        record.array(array_name(one.name, "cosines"), every.astype(np.float16))
    record.array(array_name(one.name, "networks"), path.finals[: path.seeds].astype(np.float32))
    record.array(array_name(one.name, "targets"), path.targets.astype(np.float32))
    if path.hidden is not None:
        record.array(array_name(one.name, "hidden"), path.hidden.astype(np.float32))
    if path.predictions is not None and path.at_end is not None and path.strengths is not None:
        every = np.concatenate([path.predictions, path.at_end[:, None]], axis=1)
        record.array(array_name(one.name, "predictions"), every.astype(np.float32))
        record.array(array_name(one.name, "strengths"), path.strengths)

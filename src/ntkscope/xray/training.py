"""The training of the network under the X-ray, as a loop that can be replayed; refused if it is of another one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.types import fingerprint
from ntkscope.training import Loop
from ntkscope.training.replays.recorded import RecordedFit
from ntkscope.training.trajectory import Trajectory
from ntkscope.xray.items import Items

TIMED = 3  # steps by which the time of all is told, after a first one


@dataclass(frozen=True, eq=False)
class Training:
    """A loop over all training items, and the seconds that one run of it is expected to take."""

    loop: Loop
    seconds: float

    @property
    def identity(self) -> str:
        """What an X-ray that is resumed compares."""
        return self.loop.told()


def training_of(given: Any, model: nn.Module, train: Items) -> Training | None:
    """What `fit(…, store=DIR)` returned, or a `Loop`; an error unless it is of these training items and ends in this network.

    Where a loop ends that does not say so (`final`) is not known before it is replayed. The first update is repeated, and a
    few steps are timed.
    """
    if given is None:
        return None
    if not isinstance(given, Trajectory | Loop):
        raise UsageError(
            f"got a training of type {type(given).__name__}; expected what fit(…, store=DIR) returned, finished, or a Loop"
        )
    loop = given if isinstance(given, Loop) else RecordedFit(given)
    if loop.items != len(train):
        raise UsageError(
            f"got a training on {loop.items:,} points and an X-ray of {len(train):,} training items; expected the same items,"
            " in the same order"
        )
    if isinstance(given, Trajectory) and fingerprint(given.run.part.x) != fingerprint(train.x):
        raise UsageError("got a training on other inputs than the training items; expected the same, in the same order")
    if loop.final is not None:
        own = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
        ended = {name: value.cpu() for name, value in loop.final.items()}
        if own.keys() != ended.keys() or not all(torch.equal(own[name], ended[name]) for name in own):
            raise UsageError(
                "got a training that ends in other weights than this network's; expected the training that made it"
            )
    return Training(loop, _seconds(loop))


def _seconds(loop: Loop) -> float:
    steps = min(TIMED + 1, loop.steps)
    states = loop.path(loop.start, steps, torch.ones(loop.items, device=loop.device))
    next(states, None)
    start = time.perf_counter()
    for _ in states:
        pass
    return loop.steps * (time.perf_counter() - start) / max(1, steps - 1)

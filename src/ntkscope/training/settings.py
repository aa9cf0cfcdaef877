"""Settings: everything that fixes a run besides the network and the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import Inputs, UsageError
from ntkscope.core.identity import identity
from ntkscope.training.losses import Loss
from ntkscope.training.modes import Mode
from ntkscope.training.optimizers import OptimizerFactory, check_optimizer
from ntkscope.training.schedules import Schedule
from ntkscope.training.stopping import StopWhen

Augment = Callable[[Inputs, torch.Generator], Inputs]
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, eq=False)
class StepReport:
    """What `on_step` is told: `step` updates are done, the last with this loss (a tensor, not yet read) and rate."""

    step: int
    epoch: float
    loss: Tensor
    lr: float


@dataclass(frozen=True, eq=False)
class Settings:
    """The options of `fit`, each in its one canonical form."""

    optimizer: str | OptimizerFactory
    lr: float | int
    loss: Loss
    epochs: int | None
    steps: int | None
    batch_size: int | None
    momentum: float | int
    nesterov: bool
    weight_decay: float | int
    optimizer_options: Mapping[str, Any]
    schedule: Schedule
    mode: Mode
    stop: StopWhen | None
    seed: int
    augment: Augment | None
    drop_last: bool
    autocast: str | None
    channels_last: bool
    measure: bool
    on_step: Callable[[StepReport], None] | None = field(default=None)

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise UsageError(
                f"fit came with epochs={self.epochs} and steps={self.steps}; expected exactly one: epochs= passes over"
                " the data, or steps= updates"
            )
        length = self.epochs if self.epochs is not None else self.steps
        assert length is not None
        if length < 0:
            raise UsageError(f"fit came with a length of {length}; expected 0 or more")
        if self.autocast is not None and self.autocast not in AUTOCAST:
            raise UsageError(f"autocast={self.autocast!r}; expected None, {' or '.join(map(repr, AUTOCAST))}")
        check_optimizer(self.optimizer, self.batch_size is None, **self.update_rule())

    def update_rule(self) -> dict[str, Any]:
        """The options of the optimizer."""
        return {
            "lr": self.lr,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "weight_decay": self.weight_decay,
            "options": self.optimizer_options,
        }

    def total(self, per_epoch: int) -> int:
        """The number of updates, unless the run stops early."""
        return self.steps if self.steps is not None else (self.epochs or 0) * per_epoch

    def describe(self) -> dict[str, str]:
        """The settings as texts, to tell two runs apart; what only watches a run is left out."""
        return {f.name: _text(getattr(self, f.name)) for f in fields(self) if f.name not in ("measure", "on_step")}


def _text(value: Any) -> str:
    """A text that is the same in every process: plain values as they are, anything else with its identity, so that two
    functions of one name differ where their code or what they refer to does.

    >>> _text(0.1), _text(lambda step: 0.5).startswith("<lambda> ")
    ('0.1', True)
    """
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    name = getattr(value, "__qualname__", type(value).__qualname__).rpartition(".")[2]
    return f"{name} {identity(value)}"

"""Settings: everything that fixes a run besides the network and the data."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import Tensor

from ntkscope.core import Inputs, UsageError
from ntkscope.core.arguments import as_device
from ntkscope.core.checked import Count, CountOrZero, Share
from ntkscope.core.identity import identity
from ntkscope.training.augment import ItemAugmentation
from ntkscope.training.evaluation import Weights
from ntkscope.training.losses import Loss, LossFunction, as_loss
from ntkscope.training.modes import Mode, Phase, as_mode
from ntkscope.training.moments import Moments
from ntkscope.training.optimizers import OptimizerFactory, check_optimizer
from ntkscope.training.schedules import Schedule, ScheduleLike, as_schedule
from ntkscope.training.stopping import StopWhen

Augment = Callable[[Inputs, torch.Generator], Inputs] | ItemAugmentation
NOT_TOLD = ("measure", "snapshots", "on_step", "weights", "device", "dtype")
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, eq=False)
class StepReport:
    """What `on_step` receives: `step` updates are done, the last with this loss (a tensor, not yet read) and rate."""

    step: int
    epoch: float
    loss: Tensor
    lr: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Settings:
    """Everything that fixes a run besides the network and the data; `fit`, `fit_ensemble` and `search` take one, or its fields
    as keywords. `fit` explains each of them.

    Examples:
        >>> base = Settings(lr=0.1, epochs=3, loss="mse")
        >>> as_settings(base, {"lr": 0.2}).lr
        0.2
    """

    lr: float | int
    optimizer: str | OptimizerFactory = "sgd"
    loss: str | Loss | LossFunction = "cross_entropy"
    epochs: CountOrZero | None = None
    steps: CountOrZero | None = None
    batch_size: Count | None = None
    momentum: Share = 0.0
    nesterov: bool = False
    weight_decay: float | int = 0.0
    optimizer_options: Mapping[str, Any] | None = None
    schedule: ScheduleLike = None
    mode: str | Iterable[Phase] | None = None
    stop: StopWhen | None = None
    seed: int = 0
    augment: Augment | None = None
    drop_last: bool = False
    autocast: Annotated[str, tuple(AUTOCAST)] | None = None
    channels_last: bool = False
    weights: Weights = None
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    measure: bool = True
    snapshots: Moments | None = None
    on_step: Callable[[StepReport], None] | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise UsageError(
                f"got epochs={self.epochs} and steps={self.steps}; expected exactly one: epochs= passes over the data, or"
                " steps= updates"
            )
        object.__setattr__(self, "device", as_device(self.device, auto=False))
        # What a caller may use up or change later is copied; the rest is checked by making its canonical form.
        object.__setattr__(self, "optimizer_options", dict(self.optimizer_options or {}))
        object.__setattr__(self, "mode", as_mode(self.mode))
        if isinstance(self.snapshots, Iterable) and not isinstance(self.snapshots, str):
            object.__setattr__(self, "snapshots", tuple(self.snapshots))
        check_optimizer(self.optimizer, self.batch_size is None, **self.update_rule())
        _ = self.loss_rule, self.rate  # refused here if they are invalid

    @cached_property
    def loss_rule(self) -> Loss:
        """`loss` in its canonical form."""
        return as_loss(self.loss)

    @cached_property
    def rate(self) -> Schedule:
        """`schedule` in its canonical form."""
        return as_schedule(self.schedule)

    @cached_property
    def phases(self) -> Mode:
        """`mode` in its canonical form."""
        return as_mode(self.mode)

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
        """The settings as strings, to tell two runs apart; what only watches a run is left out; so is what the identities of
        the data (`weights`) and of the network (`device`, `dtype`) tell."""
        canonical = {"loss": self.loss_rule, "schedule": self.rate, "mode": self.phases}
        told = [f.name for f in fields(self) if f.name not in NOT_TOLD]
        return {name: _text(canonical.get(name, getattr(self, name))) for name in told}


def as_settings(settings: Settings | None, options: Mapping[str, Any]) -> Settings:
    """`settings` with some fields replaced by `options`; made of `options` alone where there are none."""
    if settings is not None and not isinstance(settings, Settings):
        raise UsageError(f"got settings of type {type(settings).__name__}; expected Settings(lr=..., epochs=...)")
    known = [f.name for f in fields(Settings)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
            raise UsageError(f"got {name}=, which is not a training setting; {hint}")
    if settings is not None:
        return replace(settings, **options)
    if "lr" not in options:
        raise UsageError("got no learning rate; expected lr=, the size of an update")
    return Settings(**options)


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

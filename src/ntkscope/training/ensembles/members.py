"""Members: networks of one architecture that train together, what they share, and where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from ntkscope.core import Params, Part
from ntkscope.core.checked import Count, NonNegative, checked
from ntkscope.training.settings import Settings


@checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Together:
    """How members train together: what `fit_ensemble`, which explains them, takes besides `Settings`."""

    patience: Count | None = None
    restore: bool = True
    min_delta: NonNegative = 0.0
    diverged: Literal["raise", "nan"] = "raise"
    checkpoint_seconds: float | int = 60.0
    workers: Count | None = None
    fast: bool = False
    capture: bool = True


@dataclass(frozen=True, eq=False)
class Plan:
    """What all groups of an ensemble share."""

    settings: Settings
    size: int
    total: int
    together: Together


@dataclass(frozen=True, eq=False)
class Members:
    """Networks of one architecture with their data and what differs between them."""

    models: Sequence[nn.Module]
    parts: Sequence[Part]
    seeds: Sequence[int]
    lr: tuple[float, ...] | None = None
    weight_decay: tuple[float, ...] | None = None
    validation: Sequence[Part] | None = None

    def take(self, which: Sequence[int]) -> Members:
        """Some of them."""

        def some(values: Sequence[Any] | None) -> Any:
            return None if values is None else tuple(values[i] for i in which)

        return Members(*map(some, (self.models, self.parts, self.seeds, self.lr, self.weight_decay, self.validation)))


@dataclass(frozen=True, eq=False)
class GroupState:
    """Where a group is; tensors with a first axis of members, so that groups can be joined and cut."""

    step: int
    params: Params
    buffers: Params
    optimizer: Mapping[str, Mapping[str, Tensor]]
    watch: Mapping[str, Tensor]

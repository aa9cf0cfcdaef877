"""Learning-rate schedules: the factor on the learning rate at each step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ntkscope.core import UsageError
from ntkscope.core.checked import CountOrZero, NonNegative, Number, Share


class Schedule(ABC):
    """A factor on the learning rate. A subclass is final."""

    @abstractmethod
    def factor(self, step: int, per_epoch: int, total: int) -> float:
        """The factor for the update that follows `step` updates, of `total`, with `per_epoch` updates per epoch."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The learning rate stays."""

    def factor(self, step: int, per_epoch: int, total: int) -> float:
        return 1.0


@dataclass(frozen=True)
class LearningRateSteps(Schedule):
    """The rate is multiplied by each factor once its moment (an epoch or a step) has come; factors accumulate.

    Examples:
        >>> LearningRateSteps(((2, 0.1), (4, 0.5))).factor(step=40, per_epoch=10, total=100)
        0.05
    """

    at: tuple[tuple[CountOrZero, Number], ...]
    unit: Literal["epoch", "step"] = "epoch"

    def factor(self, step: int, per_epoch: int, total: int) -> float:
        scale = per_epoch if self.unit == "epoch" else 1
        return float(math.prod(factor for moment, factor in self.at if step >= moment * scale))


@dataclass(frozen=True)
class Triangular(Schedule):
    """From `start` up to 1 over the first `peak` of the run, then straight down to `end`. Smith (2017).

    Examples:
        >>> [Triangular(peak=0.5).factor(step, 1, 4) for step in range(5)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    peak: Share = 0.25
    start: NonNegative = 0.0
    end: NonNegative = 0.0

    def factor(self, step: int, per_epoch: int, total: int) -> float:
        at, top = step / total, float(self.peak)
        if at < top:
            return self.start + (1 - self.start) * at / top
        return 1.0 if top == 1 else 1 + (self.end - 1) * (at - top) / (1 - top)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Straight up to 1 over the first `warmup` of the run, then half a cosine down to `end`. Loshchilov and Hutter (2017).

    Examples:
        >>> [round(Cosine(warmup=0.5).factor(step, 1, 8), 6) for step in (0, 2, 4, 6, 8)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    end: NonNegative = 0.0
    warmup: Share = 0.0

    def factor(self, step: int, per_epoch: int, total: int) -> float:
        rise = self.warmup * total
        if step < rise:
            return step / rise
        at = (step - rise) / max(total - rise, 1)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * at)) / 2


@dataclass(frozen=True)
class FunctionSchedule(Schedule):
    """Any function of the step."""

    function: Callable[[int], float | int]

    def factor(self, step: int, per_epoch: int, total: int) -> float:
        return float(self.function(step))


ScheduleLike = Schedule | Mapping[int, float | int] | Callable[[int], float | int] | None


def as_schedule(schedule: ScheduleLike) -> Schedule:
    """A schedule from None, from `{epoch: factor}` or from a function of the step.

    >>> as_schedule({30: 0.1})
    LearningRateSteps(at=((30, 0.1),), unit='epoch')
    """
    if schedule is None:
        return Constant()
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, Mapping):
        if any(moment < 0 for moment in schedule):
            raise UsageError(f"schedule {dict(schedule)} has a negative epoch; expected {{epoch: factor}}")
        return LearningRateSteps(tuple(sorted(schedule.items())))
    return FunctionSchedule(schedule)

"""Schedules: at which steps of a training run a measurement falls due."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, NonNegative, checked
from ntkscope.training.moments import Every, LogSpaced, snapshot_steps


@checked
@dataclass(frozen=True)
class OnPlateau:
    """The start, the end, and once wherever the loss stops falling.

    The loss is averaged over every `window` steps. A plateau begins where an average is less than `least` (a fraction) below
    the one before it; the next one can begin once the loss has fallen by more than that again.

    Examples:
        >>> plan = agenda(OnPlateau(window=1), total=None)
        >>> [step for step, loss in enumerate([4.0, 2.0, 1.0, 1.0, 1.0]) if plan.due(step, loss)]
        [3]
    """

    window: Count = 100
    least: NonNegative = 0.01


When: TypeAlias = Every | LogSpaced | OnPlateau | int | Iterable[int]


class Agenda(Protocol):
    """A schedule while a run goes through it; asked once for every step, in order."""

    def due(self, step: int, loss: Any) -> bool:
        """Whether a measurement falls due at this step, or fell due since the last one asked about."""


def check_schedule(when: When) -> When:
    """The schedule, with steps in a tuple; refused if it is none."""
    if isinstance(when, Every):
        if when.unit != "step":
            raise UsageError(
                "got when=Every(…, 'epoch'), but a tracker does not know how long an epoch is; expected steps: Every(steps"
                " of an epoch)"
            )
        return when
    if isinstance(when, LogSpaced | OnPlateau):
        return when
    if isinstance(when, int) and not isinstance(when, bool):
        return check_schedule(Every(when))
    if isinstance(when, Iterable) and not isinstance(when, str):
        steps = tuple(when)
        if all(isinstance(step, int) and step >= 0 for step in steps):
            return steps
    raise UsageError(f"got when={when!r}; expected Every(steps), LogSpaced(moments), OnPlateau() or a list of steps")


def agenda(when: When, total: int | None, after: int = 0) -> Agenda:
    """The agenda of a schedule in a run of `total` steps (None: unknown), from step `after` on, which was measured.

    >>> plan = agenda(LogSpaced(3), 100)
    >>> [step for step in range(1, 101) if plan.due(step, None)]
    [1, 10, 100]
    """
    when = check_schedule(when)
    if isinstance(when, OnPlateau):
        return _Plateaus(when, total)
    if isinstance(when, LogSpaced):
        if total is None:
            raise UsageError(
                f"got when=LogSpaced({when.count}) and no total; expected the number of optimizer steps of the run: pass"
                " total=, or a schedule that needs none, such as when=Every(100) or when=OnPlateau()"
            )
        return _Listed(snapshot_steps(when, total), after)
    if isinstance(when, Every):
        return _Strides(when.count, total, after)
    assert not isinstance(when, int)
    return _Listed(tuple(sorted({*when, *(() if total is None else (total,))})), after)


class _Listed:
    def __init__(self, steps: tuple[int, ...], after: int) -> None:
        self.steps, self.place = steps, 0
        self.due(after, None)

    def due(self, step: int, loss: Any) -> bool:
        before = self.place
        while self.place < len(self.steps) and self.steps[self.place] <= step:
            self.place += 1
        return self.place > before


class _Strides:
    def __init__(self, stride: int, total: int | None, after: int) -> None:
        self.stride, self.total, self.passed = stride, total, after // stride

    def due(self, step: int, loss: Any) -> bool:
        passed = step // self.stride
        due = passed > self.passed or step == self.total
        self.passed = passed
        return due


class _Plateaus:
    """Sums stay where the loss is, so that an accelerator is waited for once per window."""

    def __init__(self, when: OnPlateau, total: int | None) -> None:
        self.when, self.total = when, total
        self.sum: Any = 0.0
        self.count = 0
        self.before: float | None = None
        self.falling, self.warned = True, False

    def due(self, step: int, loss: Any) -> bool:
        at_end = step == self.total
        if loss is None:
            if not self.warned:
                warnings.warn(
                    f"got no loss at step {step}, and when=OnPlateau() watches it: such steps are left out; expected"
                    " tracker.step(loss), or another schedule",
                    RuntimeWarning,
                    stacklevel=4,
                )
            self.warned = True
            return at_end
        self.sum = self.sum + (loss.detach().to(torch.float64) if isinstance(loss, Tensor) else float(loss))
        self.count += 1
        if self.count < self.when.window:
            return at_end
        mean, self.sum, self.count = float(self.sum) / self.count, 0.0, 0
        fell = self.before is None or self.before - mean > self.when.least * abs(self.before)
        begins = self.falling and not fell  # also where the loss is not a number any more
        self.before, self.falling = mean, fell
        return begins or at_end

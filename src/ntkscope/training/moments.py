"""Moments: the steps at which a snapshot is taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ntkscope.core import UsageError
from ntkscope.core.arguments import whole
from ntkscope.core.checked import Count


@dataclass(frozen=True)
class Every:
    """The start, every `count` steps or epochs, and the end.

    Examples:
        >>> snapshot_steps(Every(2, "epoch"), total=10, per_epoch=2)
        (0, 4, 8, 10)
    """

    count: Count
    unit: Literal["epoch", "step"] = "step"


@dataclass(frozen=True)
class LogSpaced:
    """The start, about `count` steps spaced evenly in their logarithm from 1 on, and the end.

    Examples:
        >>> snapshot_steps(LogSpaced(4), total=1000)
        (0, 1, 10, 100, 1000)
    """

    count: Count


Moments = str | int | Every | LogSpaced | Iterable[int]


def snapshot_steps(moments: Moments, total: int, per_epoch: int = 1) -> tuple[int, ...]:
    """The steps `moments` means in a run of `total` steps, in order; the last step is always among them.

    >>> snapshot_steps("ends", 10), snapshot_steps(4, 10), snapshot_steps([3, 1], 10)
    ((0, 10), (0, 4, 8, 10), (1, 3, 10))
    >>> snapshot_steps(LogSpaced(4), 1000), snapshot_steps(Every(2, "epoch"), 10, per_epoch=2)
    ((0, 1, 10, 100, 1000), (0, 4, 8, 10))
    """
    if moments == "final":
        return (total,)
    if moments == "ends":
        return tuple(sorted({0, total}))
    if isinstance(moments, str):
        raise UsageError(
            f"snapshots={moments!r}; expected 'final', 'ends', a number of steps, Every, LogSpaced or steps"
        )
    if isinstance(moments, int):
        moments = Every(moments)
    if isinstance(moments, Every):
        steps = {*range(0, total, moments.count * (per_epoch if moments.unit == "epoch" else 1)), total}
    elif isinstance(moments, LogSpaced):
        steps = {0, total, *np.unique(np.geomspace(1, max(total, 1), moments.count).round().astype(int)).tolist()}
    else:
        listed = moments if isinstance(moments, Iterable) else [moments]
        steps = {whole(step, "a step of snapshots", low=0) for step in listed} | {total}
        if max(steps) > total:
            raise UsageError(
                f"snapshots at steps {min(steps)} ... {max(steps)}; expected 0 ... {total}, the number of updates"
            )
    return tuple(sorted(steps))

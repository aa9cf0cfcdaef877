"""Change points: where a series steps to another level, and whether several series jump at the same moment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy.lib.stride_tricks import sliding_window_view

from ntkscope.core import UsageError, numpy_generator
from ntkscope.core.arguments import Matrix, Vector, finite, vector
from ntkscope.core.checked import Count

BLOCK = 2**20  # numbers drawn at a time
TIE = 1e-9  # statistics closer than this, relative to their scale, are equal: sums in another order round differently


@dataclass(frozen=True)
class ChangePoint:
    """The series has mean `before` up to index `at` (excluded) and `after` from it on; a constant series has no `at`."""

    at: int | None
    before: float
    after: float
    p: float


@dataclass(frozen=True)
class Jump:
    """`share` of the mean rise falls between moments `at` and `at + window`; NaN, with its `reason`, without a rise."""

    at: int
    share: float
    p: float
    reason: str | None = None


def change_point(series: Any, *, permutations: Count = 9999, seed: int = 0) -> ChangePoint:
    """The split of one series into two levels that leaves the least squares, and whether chance would do as well.

    With S_k the sum of the first k of n values less k means, the split is the k that maximises the standardised CUSUM
    |S_k| / sqrt(k (n - k) / n), which is the least-squares one; `p` is the share of the series and its random permutations
    whose largest CUSUM is at least as large. Exact when the values are exchangeable without a change. A trend or correlated
    noise is not exchangeable and counts as a change. Cost: O(n · permutations).
    References: Page (1954); Antoch and Hušková (2001).

    Examples:
        >>> found = change_point([0.0, 0.1, 0.0, 0.1, 0.0, 5.0, 5.1, 5.0, 5.1, 5.0])
        >>> found.at, round(found.before, 6), round(found.after, 6), found.p < 0.01
        (5, 0.04, 5.04, True)
    """
    values = vector(series, "series")
    n = len(values)
    if n < 2:
        raise UsageError(f"got a series of {n} values; expected at least two, one before and one after a change")
    if values.min() == values.max():
        return ChangePoint(None, float(values[0]), float(values[0]), 1.0)
    largest = 2.0 ** math.floor(math.log2(np.abs(values).max()))  # a power of two: no digit of a small step is lost
    scaled = values / largest
    centred = scaled - scaled[0]
    centred -= centred.mean()
    centred /= np.abs(centred).max()
    curve = _cusum(centred[None])[0]
    at = int(curve.argmax()) + 1
    before, after = (float(part.mean() * largest) for part in (scaled[:at], scaled[at:]))

    random = numpy_generator(seed, "change point")

    def shuffled(count: int) -> Vector:
        rows = random.permuted(np.broadcast_to(centred, (count, n)), axis=1)
        largest_cusum: Vector = _cusum(rows).max(1)
        return largest_cusum

    p = _p_value(float(curve[at - 1]), shuffled, permutations, n)
    return ChangePoint(at, before, after, p)


def common_jump(series: Any, *, window: int, permutations: Count = 9999, seed: int = 0) -> Jump:
    """Is the rise of (seeds, moments) gathered in one window that is common to the seeds?

    The statistic is the largest rise of the mean over seeds within `window` steps. It is compared with itself after each seed's
    increments are shifted around a circle by an independent random number of steps, which keeps every seed's total rise and
    the shape of its jumps, and removes only that they happen together. `p` is the share of those at least as large, the
    observation included: exact when increments are as likely at one moment as at another and seeds are independent. A rise
    that slows down in all seeds alike is gathered too, in its first window: look at `share` beside `p`. For a fall, hand over
    the negative series. The seeds count by their rise: one that rises ten times as much weighs ten times as much.
    Cost: O(seeds · moments · permutations).

    Examples:
        >>> steps = np.full((6, 40), 1.0); steps[:, 25] = 20.0
        >>> wobble = np.random.default_rng(0).normal(size=(6, 40))
        >>> found = common_jump(np.cumsum(steps + wobble, axis=1), window=1)
        >>> found.at, found.p < 0.01
        (24, True)
    """
    values = finite(series, "series", 2)
    seeds, moments = values.shape
    if seeds < 2:
        raise UsageError(
            f"got {seeds} series; expected (seeds, moments) with at least two seeds: one has nothing in common"
        )
    if not 1 <= window < moments - 1:
        raise UsageError(
            f"got window={window!r} for {moments} moments; expected a whole number of steps from 1 to {moments - 2}"
        )
    largest = np.abs(values).max()
    steps = np.diff(values / largest if largest > 0 else values, axis=1) / seeds
    scale = np.abs(steps).sum()
    sums = _circular_sums(steps, int(window))
    places = steps.shape[1] - int(window) + 1
    curve = sums[:, :places].sum(0)
    at = int(curve.argmax())
    rise = float(curve[at])

    random = numpy_generator(seed, "common jump")
    around = sliding_window_view(np.concatenate([sums, sums[:, : places - 1]], axis=1), places, axis=1)

    def shifted(count: int) -> Vector:
        total = np.zeros((count, places))
        for turned in around:  # row s of it: the sums of one seed, shifted by s steps
            total += turned[random.integers(0, len(turned), size=count)]
        largest_rise: Vector = total.max(1)
        return largest_rise

    p = _p_value(rise, shifted, permutations, places, scale=float(scale))
    total = float(steps.sum())
    if not total > TIE * scale:
        reason = "the mean over seeds does not rise" + (" at all: the series are constant" if scale == 0 else "")
        return Jump(at, math.nan, p, reason)
    return Jump(at, rise / total, p)


def _cusum(rows: Matrix) -> Float64[np.ndarray, "r m"]:
    """|S_k| / sqrt(k (n - k) / n) for k = 1 … n - 1, of rows with mean 0."""
    n = rows.shape[1]
    k = np.arange(1, n)
    return np.abs(np.cumsum(rows, axis=1)[:, :-1]) / np.sqrt(k * (n - k) / n)


def _circular_sums(steps: Matrix, window: int) -> Matrix:
    """Sums of `window` steps from each place on, around the circle."""
    around = np.concatenate([steps, steps[:, : window - 1]], axis=1)
    sums: Matrix = sliding_window_view(around, window, axis=1).sum(-1)
    return sums


def _p_value(
    observed: float, draw: Callable[[int], Vector], permutations: int, width: int, scale: float | None = None
) -> float:
    """(1 + draws at least as large) / (1 + draws); `scale` is the size of the sums that a statistic is made of."""
    limit = observed - TIE * (abs(observed) if scale is None else scale)
    as_large = 0
    for start in range(0, permutations, rows := max(1, BLOCK // width)):
        as_large += int((draw(min(rows, permutations - start)) >= limit).sum())
    return (1 + as_large) / (1 + permutations)

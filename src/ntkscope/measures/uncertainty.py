"""How far a figure could be off: standard errors over seeds, bootstraps over test items, intervals of shares, several tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.special import ndtr, ndtri, stdtrit

from ntkscope.core import UsageError, numpy_generator
from ntkscope.core.arguments import finite, unit_of, vector, whole
from ntkscope.core.checked import Count, Numbers, Positive, Probability, Share, Tolerance

BLOCK = 2**22  # counts held at a time


@dataclass(frozen=True)
class Summary:
    """Mean of a figure over repetitions, its standard error (NaN for a single repetition) and the number of repetitions."""

    mean: float
    sem: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.sem:.2g} (n = {self.n})"


def standard_error(values: Any) -> float:
    """Standard error of the mean, `s / sqrt(n)` with s² over n - 1; NaN for a single value.

    Examples:
        >>> standard_error([1.0, 3.0])
        1.0
    """
    found = vector(values, "values")
    unit = unit_of(found)
    return float((found / unit).std(ddof=1) / math.sqrt(len(found))) * unit if len(found) > 1 else math.nan


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, Summary]:
    """Mean, standard error and count of every figure that appears in the results of several seeds.

    Entries that are not numbers (texts, intervals, None) are left out, and so are NaNs, which `n` shows.

    Examples:
        >>> found = summarise([{"tau": 0.7, "note": "a"}, {"tau": 0.9}])
        >>> list(found), round(found["tau"].mean, 6), round(found["tau"].sem, 6), found["tau"].n
        (['tau'], 0.8, 0.1, 2)
    """
    columns: dict[str, list[float]] = {}
    for result in results:
        for name, value in result.items():
            if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                columns.setdefault(name, []).append(float(value))
    kept = {name: [value for value in values if math.isfinite(value)] for name, values in columns.items()}
    return {
        name: Summary(float(np.mean(values)) if values else math.nan, standard_error(values), len(values))
        for name, values in kept.items()
    }


def bootstrap_means(
    values: Numbers, statistic: Callable[[np.ndarray], np.ndarray], *, resamples: Count = 1000, seed: int = 0
) -> Float64[np.ndarray, "r k"]:
    """`statistic` of the means of `values` (n, f) over resampled items, once per resample; O(resamples · n · f).

    Resampling n items with replacement amounts to drawing how often each one occurs, so the means are one matrix product.
    `statistic` takes means (r, f) and gives (r, k). Efron (1979).

    Examples:
        >>> bootstrap_means([[1.0], [1.0]], lambda means: means, resamples=3).tolist()
        [[1.0], [1.0], [1.0]]
    """
    return statistic(resampled_means(finite(values, "values", 2), resamples=resamples, seed=seed)[0])


def resampled_means(*values: Float64[np.ndarray, "n _"], resamples: int, seed: int) -> list[Float64[np.ndarray, "r _"]]:
    """The means of several sets of values of the same n items over resampled items, the same resamples for all.

    Examples:
        >>> [means] = resampled_means(np.array([[1.0], [2.0], [3.0]]), resamples=500, seed=0)
        >>> means.shape, bool(abs(means.mean() - 2) < 0.1)
        ((500, 1), True)
    """
    n = len(values[0])
    if n < 1:
        raise UsageError("got values of no items; expected at least one")
    random = numpy_generator(seed, "bootstrap")
    blocks = []
    for start in range(0, resamples, rows := max(1, BLOCK // n)):
        count = min(rows, resamples - start)
        drawn = random.integers(0, n, size=(count, n)) + n * np.arange(count)[:, None]
        times = np.bincount(drawn.reshape(-1), minlength=count * n).reshape(count, n).astype(np.float64)
        blocks.append([times @ items / n for items in values])
    return [np.concatenate(means) for means in zip(*blocks)]


def percentile_interval(values: Any, level: Probability = 0.95, items: Count | None = None) -> tuple[float, float]:
    """The central interval that holds `level` of the values.

    Of resamples of n `items`, as much more as Student's quantile times `√(n / (n - 1))` exceeds the normal one: resamples
    spread less than samples do, and of ten items 90 % of the intervals would cover instead of 95. Hesterberg (2015).

    Examples:
        >>> percentile_interval(range(101), 0.9)
        (5.0, 95.0)
    """
    ordered = np.sort(vector(values, "values"))
    if not len(ordered):
        raise UsageError("got no values; expected at least one")
    tail = (1 - Fraction(repr(float(level)))) / 2  # of the decimal as written: 0.9 leaves 1/20, not 0.04999999999999999
    if items is not None:
        wide = math.sqrt(items / (items - 1)) * stdtrit(items - 1, float(tail)) if items > 1 else -math.inf
        tail = Fraction(float(ndtr(wide)))
    return _quantile(ordered, tail), _quantile(ordered, 1 - tail)


def wilson_interval(successes: int, trials: int, z: Positive = 1.959963984540054) -> tuple[float, float]:
    """Wilson's interval for a share, by default at 95 %; from 0 to 1 without trials. Wilson (1927).

    Examples:
        >>> [round(end, 4) for end in wilson_interval(0, 10)], wilson_interval(0, 0)
        ([0.0, 0.2775], (0.0, 1.0))
    """
    middle, half, total = _wilson(successes, trials, z)
    if not trials:
        return 0.0, 1.0
    low = 0.0 if successes == 0 else (middle - half) / total
    return low, 1.0 if successes == trials else (middle + half) / total


def wilson(successes: int, n: int, level: Probability = 0.95) -> tuple[float, float]:
    """Centre and half-width of Wilson's interval for the share `successes / n`; (0.5, 0.5) without trials.

    With s = z²/n and p the share: (p + s/2) / (1 + s) and sqrt(s (p (1 - p) + s/4)) / (1 + s). The centre is not the share:
    it is pulled towards 1/2, and the half-width is positive even at shares of 0 and 1. Wilson (1927).

    Examples:
        >>> [round(number, 4) for number in wilson(66, 500)], [round(number, 4) for number in wilson(0, 500)]
        ([0.1348, 0.0297], [0.0038, 0.0038])
    """
    middle, half, total = _wilson(successes, n, normal_quantile(level))
    return (middle / total, half / total) if n else (0.5, 0.5)


def wald_trials(share: Probability, half_width: Tolerance, level: Probability = 0.95) -> float:
    """The n that a printed `share ± half_width` implies if it is z sqrt(p (1 - p) / n): z² p (1 - p) / half_width².

    A reader's check of a table: how many trials its intervals claim. At a share of 0 or 1 that interval has no width and tells
    nothing of n, so it is refused.

    Examples:
        >>> round(wald_trials(0.5, 0.0310))
        999
    """
    return normal_quantile(level) ** 2 * share * (1 - share) / half_width**2


def normal_quantile(level: Probability) -> float:
    """The z for which a standard normal lies within ± z with probability `level`.

    Examples:
        >>> round(normal_quantile(0.95), 6)
        1.959964
    """
    return -float(ndtri((1 - level) / 2))


def _wilson(successes: int, trials: int, z: float) -> tuple[float, float, float]:
    """Centre and half-width of Wilson's interval, both times the third number, `1 + z²/n`."""
    trials = whole(trials, "trials", low=0)
    successes = whole(successes, "successes", low=0, high=trials)
    if not trials:
        return 0.5, 0.5, 1.0
    share, square = successes / trials, z * z / trials
    return share + square / 2, math.sqrt(square * (share * (1 - share) + square / 4)), 1 + square


def _quantile(ordered: Float64[np.ndarray, " n"], share: Fraction) -> float:
    """Linear between the two values around the exact position `share · (n - 1)`, without rounding or overflow."""
    place = share * (len(ordered) - 1)
    first = int(place)
    weight = float(place - first)
    low, high = float(ordered[first]), float(ordered[min(first + 1, len(ordered) - 1)])
    return low if low == high or weight == 0 else (1 - weight) * low + weight * high


def holm(p_values: Sequence[Share]) -> list[float]:
    """Holm's (1979) p-values: the k-th smallest of m times m - k + 1, never below the ones before, at most 1.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    out, highest = [0.0] * len(p_values), 0.0
    for place, k in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[k]))
        out[k] = highest
    return out

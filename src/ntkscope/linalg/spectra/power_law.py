"""The tail of a sample as a power law, after Clauset, Shalizi & Newman (2009), and what speaks against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.core.arguments import vector
from ntkscope.core.checked import CountOrZero, Several
from ntkscope.linalg.spectra.tail_rivals import RIVALS, Vuong, vuong

CANDIDATES = 400  # thresholds tried at most, evenly spaced by rank
CONFIDENCE = 0.95
SMALL, THINNED, MOST, FEW = 32, 8, 512, 8  # beyond 32 values every eighth, or 512 of them, bound the distances
PAIRS = 1 << 20  # of a threshold and a point, looked at together


@dataclass(frozen=True)
class TailFit:
    """`density(x) ∝ x^(-alpha)` from `x_min` on."""

    alpha: float
    interval: tuple[float, float]
    """95 %: of samples drawn with replacement, x_min chosen anew in each; without resampling, asymptotic at this x_min."""
    x_min: float
    points: int
    """Values at or above `x_min`."""
    distance: float
    """Kolmogorov–Smirnov, between these points and the fitted law."""
    p_value: float
    """Share of samples from the fitted law that lie farther from their own fit; a small one speaks against a power law. NaN
    without resampling."""
    against: Mapping[str, Vuong]
    """By rival ("log-normal", "exponential", "truncated"): a positive ratio favours the power law, a p near 1 neither. The
    power law is a limit of the log-normal and a case of the truncated one: these two fit at least as well. Empty
    where nobody asked."""


def power_law_tail(values: Any, *, least: Several = 50, resamples: CountOrZero = 1000, seed: int = 0) -> TailFit:
    """The power law that the largest of `values` follow best, with interval, goodness of fit and rivals.

    For each threshold that leaves `least` points or more, `alpha = 1 + n / Σ log(x / x_min)` is the maximum of the likelihood;
    x_min is the threshold at which fitted and empirical law are nearest. At most 400 thresholds are tried, evenly spaced by
    rank. Both bootstraps choose x_min anew: the p-value's draws values below x_min from the sample, those above from
    the fitted law. `resamples=0` leaves them out. O(400 n) per fit.

    Examples:
        >>> sample = (1 - (np.arange(2000) + 0.5) / 2000) ** (-1 / 1.5)       # quantiles of a power law with exponent 2.5
        >>> found = power_law_tail(sample, resamples=0)
        >>> abs(found.alpha - 2.5) < 0.02, found.against["exponential"].ratio > 5
        (True, True)
    """
    x = checked_sample(values, least)
    plain = plain_tail(x, least)
    alpha, x_min, points, distance = plain.alpha, plain.x_min, plain.points, plain.distance
    start = len(x) - points
    interval, p_value = plain.interval, math.nan
    if resamples:
        random = numpy_generator(seed, "power-law tail")
        farther, exponents = 0, np.empty(resamples)
        for k in range(resamples):
            above = int(random.binomial(len(x), points / len(x)))
            body = random.choice(x[:start], len(x) - above) if start else np.empty(0)
            drawn = x_min * (1 - random.random(above if start else len(x))) ** (-1 / (alpha - 1))
            farther += best_threshold(np.sort(np.concatenate([body, drawn])), least)[2] >= distance
            exponents[k] = best_threshold(np.sort(random.choice(x, len(x))), least)[0]
        p_value = (1 + farther) / (1 + resamples)
        low, high = np.quantile(exponents, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        interval = float(low), float(high)
    against = {name: vuong(x[start:] / x_min, alpha, rival) for name, rival in RIVALS.items()}
    return TailFit(alpha, interval, x_min, points, distance, p_value, against)


def plain_tail(x: Float64[np.ndarray, " n"], least: int) -> TailFit:
    """The fit alone, of a checked sample: neither bootstraps nor rivals."""
    alpha, start, distance = best_threshold(x, least)
    points = len(x) - start
    return TailFit(alpha, _asymptotic(alpha, points), float(x[start]), points, distance, math.nan, {})


def checked_sample(values: Any, least: int) -> Float64[np.ndarray, " n"]:
    """Positive values, ascending; zeros (eigenvalues of a singular matrix) are left out."""
    array = vector(values, "values")
    if bool((array < 0).any()):
        raise UsageError(
            "got negative values; expected sizes such as eigenvalues: take absolute values or one side first"
        )
    x = np.sort(array[array > 0])
    if len(x) < least:
        raise UsageError(
            f"got {len(x)} positive values with least={least}; expected at least {least}: a tail of fewer points says"
            " little about its exponent; ask for a smaller `least` if you must"
        )
    if x[-1] == x[-least]:
        raise NumericalError(f"the largest {least} values are all {x[-1]:.6g}; a tail needs values that differ")
    return x


def best_threshold(x: Float64[np.ndarray, " n"], least: int) -> tuple[float, int, float]:
    """Exponent, index of the threshold, distance, at the threshold whose distance is smallest; `x` ascending and positive."""
    n = len(x)
    firsts = np.flatnonzero(np.concatenate([[True], x[1:] > x[:-1]]))  # a threshold keeps all values equal to it
    firsts = firsts[(n - firsts >= least) & (x[firsts] < x[-1])]
    if len(firsts) > CANDIDATES:
        firsts = firsts[np.linspace(0, len(firsts) - 1, CANDIDATES).round().astype(int)]
    if not len(firsts):  # a resample of ties
        return math.inf, 0, math.inf
    logs = np.log(x)
    sums = np.cumsum(logs[::-1])[::-1]
    points = n - firsts
    excess = sums[firsts] - points * logs[firsts]
    alphas = 1 + points / excess
    best, distance = _nearest(logs, firsts, alphas)
    return float(alphas[best]), int(firsts[best]), distance


def _nearest(
    logs: Float64[np.ndarray, " n"], firsts: Int64[np.ndarray, " k"], alphas: Float64[np.ndarray, " k"]
) -> tuple[int, float]:
    """Which threshold's distance is smallest, the lowest of equal ones, and that distance.

    Some of the points bound each distance from below; all of them are looked at where the bound does not rule it out.
    """
    n = len(logs)
    bounds, together = np.full(len(firsts), -math.inf), len(firsts)
    if n > SMALL:
        bounds, together = _distances(logs, np.arange(0, n, max(THINNED, n // MOST)), firsts, alphas), FEW
    order = np.argsort(bounds, kind="stable")
    best, distance, at = 0, math.inf, 0
    while at < len(order) and bounds[order[at]] <= distance:
        some = order[at : at + together]
        exact = _distances(logs, np.arange(int(firsts[some].min()), n), firsts[some], alphas[some])
        for k, value in zip(some.tolist(), exact.tolist()):
            if value < distance or (value == distance and k < best):
                best, distance = k, value
        at, together = at + together, max(FEW, min(2 * together, PAIRS // n))
    return best, distance


def _distances(
    logs: Float64[np.ndarray, " n"],
    places: Int64[np.ndarray, " p"],
    firsts: Int64[np.ndarray, " k"],
    alphas: Float64[np.ndarray, " k"],
) -> Float64[np.ndarray, " k"]:
    """Kolmogorov–Smirnov distances of the tails from `firsts` on, as far as the points at `places` show them."""
    points = (len(logs) - firsts)[:, None]
    beyond = places - firsts[:, None]  # points of the tail below the one here; negative: not in this tail
    law = -np.expm1((1 - alphas)[:, None] * np.maximum(logs[places] - logs[firsts][:, None], 0.0))
    gap = law - beyond / points
    inside = beyond >= 0
    above = np.where(inside, gap, -math.inf).max(1)
    below = np.where(inside, -gap, -math.inf).max(1) + 1 / points[:, 0]
    return np.maximum(above, below)


def _asymptotic(alpha: float, points: int) -> tuple[float, float]:
    width = 1.959963984540054 * (alpha - 1) / math.sqrt(points)
    return alpha - width, alpha + width

"""Whether two methods differ, from repeated random splits of one data set: the corrected resampled t-test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from scipy import stats

from ntkscope.core import UsageError
from ntkscope.core.arguments import finite, unit_of
from ntkscope.core.checked import Probability, within

Size: TypeAlias = Annotated[float, within(low=1)]


@dataclass(frozen=True)
class ResampledTest:
    """What `corrected_t_test` found."""

    mean: float
    """The mean difference over the splits."""
    low: float
    high: float
    """Its interval."""
    t: float
    p: float
    """Two-sided; NaN where all differences are equal and not 0, which leaves no spread to judge by."""
    n: int
    """How many splits."""
    sem: float
    """The standard error if the splits were independent, which they are not: the test does not use it."""


def corrected_t_test(
    differences: Any,
    *,
    train: Size,
    test: Size,
    level: Probability = 0.95,
) -> ResampledTest:
    """Student's t with n - 1 degrees of freedom of `mean(d) / sqrt((1/n + test/train) var(d))`; O(n).

    `differences` (n,) are those of two methods trained on the same `train` items and tested on the same `test` items, once
    per random split. Training sets of different splits share items, so the plain standard error `sqrt(var/n)` shrinks to 0
    with the number of splits although nothing new is learned; the term `test/train` stands for that correlation. Nadeau and
    Bengio (2003), section 3.4, equation 9.

    Examples:
        >>> found = corrected_t_test([0.0, 0.02, 0.04], train=300, test=100)
        >>> round(found.mean, 3), round(found.t, 4), found.n
        (0.02, 1.2247, 3)
    """
    values = finite(differences, "differences", 1)
    n, unit = len(values), unit_of(values)
    if n < 2:
        raise UsageError(f"got {n} difference(s); expected those of at least two splits")
    share = test / train
    values = values / unit
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    if deviation <= 1e-12 * float(abs(values).max()):
        deviation = 0.0
    error = math.sqrt(1 / n + share) * deviation
    t = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    p = float(2 * stats.t.sf(abs(t), n - 1)) if error else math.nan if mean else 1.0
    wide = float(stats.t.ppf((1 + level) / 2, n - 1)) * error
    mean, low, high, sem = (unit * one for one in (mean, mean - wide, mean + wide, deviation / math.sqrt(n)))
    return ResampledTest(mean, low, high, t, p, n, sem)

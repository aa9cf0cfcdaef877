"""Two tests of a difference between methods from repeated splits: the published one, and one that is fair.

Published: Kolmogorov–Smirnov between all accuracies of one method and all of the other. It treats resamples of the same 359
tweets as independent, and compares accuracies on 59 tweets with accuracies on 359, whose spread differs whatever the method.
Fair: both methods on the same held-out tweets of each shuffle, and the corrected resampled t-test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from ntkscope.measures.resampled import corrected_t_test
from ntkscope_papers.qadeer_2023.networks import digits


@cache
def ladder(n: int) -> tuple[float, ...]:
    """Every p that the exact two-sided test of n against n can have, from D = 1/n on; O(n²).

    `P(D ≥ k/n) = 2 Σ_j (-1)^(j-1) C(2n, n - jk) / C(2n, n)`. Gnedenko and Korolyuk (1951).

    >>> [round(p, 4) for p in ladder(3)]
    [1.0, 0.6, 0.1]
    """
    whole = math.comb(2 * n, n)
    found = []
    for k in range(1, n + 1):
        terms = ((-1) ** (j - 1) * math.comb(2 * n, n - j * k) for j in range(1, n // k + 1))
        found.append(min(1.0, 2 * sum(terms) / whole))
    return tuple(found)


def attainable(n: int, p: float, decimals: int) -> bool:
    """Whether n against n can have a p that is `p` when rounded.

    >>> attainable(50, 0.007, 3), attainable(40, 0.007, 3), attainable(30, 0.007, 3)
    (False, True, True)
    """
    return any(round(value, decimals) == p for value in ladder(n))


def neighbours(n: int, p: float) -> tuple[float, float]:
    """The two attainable values around `p`."""
    values = ladder(n)
    return max((v for v in values if v <= p), default=0.0), min((v for v in values if v > p), default=1.0)


def published_test(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """The Kolmogorov–Smirnov test as published."""
    found = stats.ks_2samp(first, second, method="exact")
    return {"D": digits(float(found.statistic), 4), "p": digits(float(found.pvalue), 3), "n": [len(first), len(second)]}


def fair_test(differences: Sequence[float], train: int, test: int) -> dict[str, Any]:
    """The corrected resampled t-test of paired differences, in points."""
    found = corrected_t_test(100 * np.asarray(differences, dtype=np.float64), train=train, test=test)
    return {
        "points": digits(found.mean, 3),
        "interval": [digits(found.low, 3), digits(found.high, 3)],
        "p": found.p if math.isnan(found.p) else digits(found.p, 3),
        "shuffles": found.n,
    }

"""Kendall's rank correlation: how often two scores put two items in the same order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64
from scipy.stats import t as student

from ntkscope.core import NumericalError
from ntkscope.core.arguments import Vector, choice, probability, two_orders
from ntkscope.measures.registry import measure

Counts = Int64[np.ndarray, " n"]
Ties = Literal["b", "discordant"]
TIES = ("b", "discordant")


@dataclass(frozen=True)
class Kendall:
    """Both readings of Kendall's coefficient, with the standard error of each over the items.

    `tau_b` leaves tied pairs out of a geometric mean; `literal` counts every pair that is not strictly concordant as
    discordant. `ties` is the number of pairs tied in one score or in both, of `pairs`. `tau_b` is NaN when a score is
    constant.
    """

    tau_b: float
    literal: float
    ties: int
    pairs: int
    concordant: int
    discordant: int
    tau_b_error: float
    literal_error: float

    def interval(self, ties: Ties = "b", level: float = 0.95) -> tuple[float, float]:
        """An interval around one of the two, cut to [-1, 1]: Student's with n - 2 degrees of freedom for n items; all
        of [-1, 1] for two of them."""
        both = {"b": (self.tau_b, self.tau_b_error), "discordant": (self.literal, self.literal_error)}
        middle, error = both[choice(ties, "ties", tuple(both))]
        n = (1 + math.isqrt(1 + 8 * self.pairs)) // 2
        if n < 3:
            return -1.0, 1.0
        width = float(student.ppf((1 + probability(level)) / 2, n - 2)) * math.sqrt(n / (n - 2)) * error
        return (max(-1.0, middle - width), min(1.0, middle + width))


def kendall(a: Any, b: Any) -> Kendall:
    """Kendall's coefficient of two scores of the same items, with ties counted and standard errors.

    With P concordant and Q discordant pairs of n₀ = n(n-1)/2, n₁ and n₂ of them tied in a and in b:
    `τ_b = (P - Q) / sqrt((n₀ - n₁)(n₀ - n₂))`, `literal = (P - (n₀ - P)) / n₀`. O(n log n): for each item, the number
    of items below it in both scores is counted while descending a wavelet tree.

    The standard errors are those of the infinitesimal jackknife over items, exact to first order in 1/n: every
    coefficient is a smooth function of means over pairs, and item i enters through its own mean over its pairs.
    Kendall (1945); Efron & Stein (1981); Knight (1966) for counting by sorting.

    Examples:
        >>> found = kendall([1, 2, 3, 4], [1, 2, 2, 4])
        >>> found.concordant, found.discordant, found.ties, round(found.tau_b, 4), round(found.literal, 4)
        (5, 0, 1, 0.9129, 0.6667)
    """
    x, y = two_orders(a, b)
    n = len(x)
    concordant_with = below_in_both(x, y) + below_in_both(-x, -y)
    discordant_with = below_in_both(x, -y) + below_in_both(-x, y)
    pairs = n * (n - 1) // 2
    concordant, discordant = int(concordant_with.sum()) // 2, int(discordant_with.sum()) // 2
    # per item, the share of its pairs that are concordant, ordered in a, ordered in b
    differs_a, differs_b = ((n - np.bincount(r)[r]) / (n - 1) for r in (x, y))
    balance = (concordant_with - discordant_with) / (n - 1)
    in_a, in_b = float(differs_a.mean()), float(differs_b.mean())
    tau_b = tau_b_error = math.nan
    if in_a > 0 and in_b > 0:
        scale = math.sqrt(in_a) * math.sqrt(in_b)
        tau_b = (concordant - discordant) / _root(_untied(x) * _untied(y))
        influence = (balance - balance.mean()) / scale - tau_b / 2 * (differs_a / in_a + differs_b / in_b - 2)
        tau_b_error = _error(2 * influence)
    return Kendall(
        tau_b=tau_b,
        literal=2 * concordant / pairs - 1,
        ties=pairs - concordant - discordant,
        pairs=pairs,
        concordant=concordant,
        discordant=discordant,
        tau_b_error=tau_b_error,
        literal_error=_error(4 * concordant_with / (n - 1)),
    )


@measure("kendall-tau", of="two scores", low=-1, high=1, best=1)
def kendall_tau(a: Any, b: Any, ties: Ties = "b") -> float:
    """Kendall's τ of two scores of the same items: τ-b, or with `ties="discordant"` the literal rule.

    The literal rule counts every pair that is not strictly concordant as discordant, so ties lower it: a tied score
    compared with itself stays below 1. O(n log n); see `kendall`.

    Examples:
        >>> kendall_tau([1, 2, 3], [10, 20, 30]), kendall_tau([1, 2, 3], [3, 2, 1])
        (1.0, -1.0)
        >>> round(kendall_tau([1, 1, 2], [1, 1, 2], ties="discordant"), 4)
        0.3333
    """
    found = kendall(a, b)
    if ties == "b" and math.isnan(found.tau_b):
        raise NumericalError(
            'one of the scores is constant, so it orders no pair and τ-b is undefined; ties="discordant" gives -1'
        )
    return found.tau_b if ties == "b" else found.literal


def below_in_both(x: Counts, y: Counts) -> Counts:
    """For each i the number of j with x_j < x_i and y_j < y_i; O(n log n).

    Items stand in order of x. Their places, listed in order of y, are split by one bit after the other, highest first,
    each time keeping the order: in a block whose places share the higher bits, the zeros listed before a one are the
    items of smaller place and smaller y that differ from it first in this bit.

    Examples:
        >>> below_in_both(np.array([0, 1, 2]), np.array([0, 2, 1])).tolist()
        [0, 1, 1]
    """
    n = len(x)
    items = np.lexsort((-y, x))  # equal x: larger y first, so that it is never below
    places = np.lexsort((-np.arange(n), y[items]))  # equal y: larger place first, likewise
    count = np.zeros(n, dtype=np.int64)
    for bit in range(max(0, (n - 1).bit_length() - 1), -1, -1):
        start = (places >> (bit + 1)) << (bit + 1)  # where the block of each place begins, in the list as in the order
        one = (places >> bit) & 1
        zeros = np.concatenate([[0], np.cumsum(1 - one)])
        zeros_before = zeros[:-1] - zeros[start]
        count[places] += one * zeros_before
        ones_before = np.arange(n) - start - zeros_before
        split = np.empty_like(places)
        split[start + np.where(one == 1, (1 << bit) + ones_before, zeros_before)] = places
        places = split
    found = np.empty(n, dtype=np.int64)
    found[items] = count
    return found


def _untied(ranks: Counts) -> int:
    sizes = np.bincount(ranks).astype(np.int64)
    return len(ranks) * (len(ranks) - 1) // 2 - int((sizes * (sizes - 1) // 2).sum())


def _root(square: int) -> float | int:
    """The square root, exact for the square of a whole number, so that equal orders give 1 and not 1 - 1e-16."""
    whole = math.isqrt(square)
    return whole if whole * whole == square else math.sqrt(square)


def _error(influence: Vector) -> float:
    return float(np.sqrt(np.square(influence - influence.mean()).mean() / len(influence)))

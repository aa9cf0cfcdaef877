"""Maximum mean discrepancy: how far apart the mean features of two samples are under a kernel. Gretton et al. (2012)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.stats
from jaxtyping import Float64, Int64

from ntkscope.core import UsageError, numpy_generator
from ntkscope.explain.two_sample.rearrangements import Rearrangements

BLOCK = 1 << 24  # kernel values held at a time
SAMPLE = 1000  # items from whose pairs the median distance is taken
Rows: TypeAlias = Callable[[slice], Float64[np.ndarray, "k n"]]  # a kernel between some items and all of them


def median_square(X: Float64[np.ndarray, "n p"], unit: Int64[np.ndarray, " n"], seed: int = 0) -> float:
    """The median squared distance between items of different units, of at most a thousand items.

    >>> median_square(np.array([[0.0], [1.0], [3.0]]), np.arange(3))
    4.0
    """
    chosen = np.arange(len(X))
    if len(X) > SAMPLE:
        chosen = numpy_generator(seed, "shift", "median").choice(len(X), SAMPLE, replace=False)
    apart = (unit[chosen][:, None] != unit[chosen][None]) & np.triu(np.ones((len(chosen),) * 2, dtype=bool), 1)
    distances = squared_distances(X[chosen], X[chosen])[apart]
    median = float(np.median(distances)) if len(distances) else 0.0
    if median <= 0:  # most pairs are equal: the others set the scale
        positive = distances[distances > 0]
        if not len(positive):
            raise UsageError("all groups have the same embedding; expected one that varies between them")
        median = float(np.median(positive))
    return median


def squared_distances(X: Float64[np.ndarray, "k p"], Y: Float64[np.ndarray, "n p"]) -> Float64[np.ndarray, "k n"]:
    """Squared Euclidean distances, never below zero."""
    found = np.square(X).sum(1)[:, None] + np.square(Y).sum(1)[None] - 2 * X @ Y.T
    return np.maximum(found, 0, out=found)


def gaussian(X: Float64[np.ndarray, "n p"], unit: Int64[np.ndarray, " n"], seed: int = 0) -> Rows:
    """`exp(-‖x - x'‖² / (2 h))`, h the median squared distance of both samples together."""
    scale = -0.5 / median_square(X, unit, seed)
    return lambda rows: np.exp(scale * squared_distances(X[rows], X))


@dataclass(frozen=True, eq=False)
class Discrepancies:
    """The unbiased squared discrepancy of every arrangement, the samples' own first, and every item's part in that one."""

    squared: Float64[np.ndarray, " r"]
    parts: Float64[np.ndarray, " n"]


def discrepancies(kernel: Rows, found: Rearrangements) -> Discrepancies:
    """All arrangements from one pass over the kernel; O(n² r), the kernel in blocks of rows.

    `mean k(x, x') + mean k(y, y') - 2 mean k(x, y)` over pairs of different units. An item's part is twice its mean kernel with
    its own sample minus that with the other.
    """
    labels = found.labels.T.astype(np.float64)  # (n, r)
    inside, across, total = np.zeros(labels.shape[1]), np.zeros(labels.shape[1]), 0.0
    to_first, to_second = np.zeros(len(labels)), np.zeros(len(labels))
    for rows, values in _blocks(kernel, found.unit):
        products = values @ labels  # (k, r)
        inside += np.einsum("kr,kr->r", products, labels[rows])
        across += products.sum(0)
        sums = values.sum(1)
        total += float(sums.sum())
        to_second[rows], to_first[rows] = products[:, 0], sums - products[:, 0]
    across -= inside
    first = total - 2 * across - inside
    n, m = len(labels) - found.second, found.second
    squares = np.square(found.sizes)
    units = np.zeros((labels.shape[1], len(squares)), dtype=bool)
    units[:, found.unit] = found.labels
    own = units @ squares  # pairs within units of the second sample
    squared = first / (n**2 - squares.sum() + own) + inside / (m**2 - own) - 2 * across / (n * m)
    others = found.sizes[found.unit]
    second = found.labels[0]
    same = np.where(second, to_second / np.maximum(m[0] - others, 1), to_first / np.maximum(n[0] - others, 1))
    return Discrepancies(squared, 2 * (same - np.where(second, to_first / n[0], to_second / m[0])))


def discrepancy_interval(
    found: Discrepancies, arranged: Rearrangements, confidence: float = 0.95
) -> tuple[float, float]:
    """An interval that covers the squared discrepancy at least so often, from items' parts added up by unit.

    Their variance v₁ is of first order; what remains without a difference, v₀, is that of the rearrangements. v₁ grows with the
    discrepancy itself, so the upper end solves `(x - value)² = q² (v₁ x / value + v₀)`, as Wilson's does; the lower end has
    v₁ + v₀. q: Student's, by the units of the smaller sample.
    """
    unit, first, fewest = arranged.unit, 0.0, len(arranged.unit)
    for which in (arranged.labels[0], ~arranged.labels[0]):
        apart = (found.parts[which] - found.parts[which].mean()) / int(which.sum())
        totals = np.bincount(np.unique(unit[which], return_inverse=True)[1].reshape(-1), apart)
        first += len(totals) / (len(totals) - 1) * float(np.square(totals).sum())
        fewest = min(fewest, len(totals))
    value, none = float(found.squared[0]), float(found.squared[1:].std())
    square = float(scipy.stats.t.ppf(0.5 + confidence / 2, fewest - 1)) ** 2
    slope = first / max(value, none) if first else 0.0
    up = square * slope / 2 + max(0.0, (square * slope / 2) ** 2 + square * (slope * value + none**2)) ** 0.5
    return value - (square * (first + none**2)) ** 0.5, value + up


def _blocks(kernel: Rows, unit: Int64[np.ndarray, " n"]) -> Iterator[tuple[slice, Float64[np.ndarray, "k n"]]]:
    """The kernel in blocks of rows, pairs of one unit set to zero."""
    step = max(1, BLOCK // len(unit))
    for start in range(0, len(unit), step):
        rows = slice(start, min(start + step, len(unit)))
        values = kernel(rows)
        values[unit[rows][:, None] == unit[None]] = 0.0
        yield rows, values

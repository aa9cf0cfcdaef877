"""Kolmogorov–Smirnov on principal components: the largest distance between two distribution functions, over all components."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

COMPONENTS = 20
TIES = 1e-6  # weight of the mean distance, far below the steps in which distances come
BLOCK = 1 << 23  # counts held at a time


def distances(values: Float64[np.ndarray, " n"], labels: Bool[np.ndarray, "r n"]) -> Float64[np.ndarray, " r"]:
    """`sup_t |F_a(t) - F_b(t)|` of every labelling of the values; sorted once, then O(n r).

    >>> distances(np.array([1.0, 2.0, 2.0, 3.0]), np.array([[False, False, True, True]])).tolist()
    [0.5]
    """
    order = np.argsort(values, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(values[order]) > 0, True))  # the last of equal values
    n = len(values)
    found = np.empty(len(labels))
    for start in range(0, len(labels), step := max(1, BLOCK // n)):
        some = labels[start : start + step][:, order]
        counts = np.cumsum(some, axis=1, dtype=np.int32)
        second = counts[:, -1:].astype(np.float64)
        if len(ends) < n:
            counts = counts[:, ends]
        gaps = counts * (1 / second + 1 / (n - second))
        gaps -= (ends + 1) / (n - second)
        found[start : start + step] = np.maximum(gaps.max(1), -gaps.min(1))
    return found


@dataclass(frozen=True, eq=False)
class Largest:
    """The statistic of every labelling, and of the first one the largest distance and the component that has it.

    The statistic is the largest distance over components. Distances come in steps, so that many labellings share one; among
    those, the mean over components decides, without which the test would reject less often than its level.
    """

    statistic: Float64[np.ndarray, " r"]
    distance: float
    component: int


def largest_distances(components: Float64[np.ndarray, "n d"], labels: Bool[np.ndarray, "r n"]) -> Largest:
    """The largest distance over components of every labelling; O(d n r)."""
    every = np.stack([distances(column, labels) for column in components.T])  # (d, r)
    largest = every.max(0)
    return Largest(largest + TIES * every.mean(0), float(largest[0]), int(every[:, 0].argmax()))


def distance_interval(
    distance: float,
    unit: Int64[np.ndarray, " n"],
    second: Bool[np.ndarray, " n"],
    components: int,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """An interval for the largest distance that holds for any distribution (Dvoretzky–Kiefer–Wolfowitz, Massart 1990).

    The bound of each of two samples and of every component, at their share of the error; units of different sizes count as
    `(Σ size)² / Σ size²`.
    """
    error = (1 - confidence) / (2 * components)
    reach = 0.0
    for which in (second, ~second):
        sizes = np.bincount(unit[which])
        reach += math.sqrt(math.log(2 / error) / (2 * sizes.sum() ** 2 / np.square(sizes).sum()))
    return max(0.0, distance - reach), min(1.0, distance + reach)

"""Kolmogorov–Smirnov on principal components: the largest distance between two distribution functions, over all components."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float64, Int64

COMPONENTS = 20
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


def largest_distances(
    components: Float64[np.ndarray, "n d"], labels: Bool[np.ndarray, "r n"]
) -> tuple[Float64[np.ndarray, " r"], int]:
    """The largest distance over components of every labelling, and the component at which the first labelling has it."""
    every = [distances(column, labels) for column in components.T]
    return np.max(every, axis=0), int(np.argmax([column[0] for column in every]))


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

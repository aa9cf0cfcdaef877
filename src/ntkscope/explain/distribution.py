"""How attributions are distributed: box-plot statistics by training class, and how concentrated they are on few points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ntkscope.core import UsageError
from ntkscope.core.arguments import column_count, finite, labels_of
from ntkscope.core.checked import Numbers

Table = Float64[np.ndarray, "k c"]


@dataclass(frozen=True, eq=False)
class ClassSummary:
    """Box-plot statistics of one item's attributions for each training class (rows) and logit (columns).

    `low` and `high` are the whiskers: the outermost values within 1.5 interquartile ranges of the box, or its edges.
    `outliers[k][c]` are the training points beyond them. A class without members has NaN.
    """

    count: Int64[np.ndarray, " k"]
    mean: Table
    q1: Table
    median: Table
    q3: Table
    low: Table
    high: Table
    outliers: tuple[tuple[Int64[np.ndarray, " _"], ...], ...]

    @property
    def mean_inside(self) -> Bool[np.ndarray, "k c"]:
        """Whether the mean lies between the quartiles: not dragged out of the bulk by a few points."""
        return (self.q1 <= self.mean) & (self.mean <= self.q3)


def class_summary(attribution_item: Numbers, y_train: Any) -> ClassSummary:
    """Box-plot statistics of one item's attributions (n_train, c) by training class; O(n c log n). Tukey (1977).

    Examples:
        >>> found = class_summary(np.array([[1.0], [2.0], [3.0], [4.0], [40.0], [7.0]]), np.array([0, 0, 0, 0, 0, 1]))
        >>> found.median[:, 0].tolist(), float(found.high[0, 0]), found.outliers[0][0].tolist(), bool(found.mean_inside[0, 0])
        ([3.0, 7.0], 4.0, [4], False)
    """
    values = finite(attribution_item, "attributions", 1, 2)
    values = values[:, None] if values.ndim == 1 else values
    labels = labels_of(y_train, len(values))
    k, c = column_count(labels), values.shape[1]
    mean, q1, median, q3, low, high = (np.full((k, c), np.nan) for _ in range(6))
    outliers = []
    for number in range(k):
        members = np.flatnonzero(labels == number)
        if not len(members):
            outliers.append(tuple(np.zeros(0, dtype=np.int64) for _ in range(c)))
            continue
        own = values[members]
        mean[number] = own.mean(0)
        q1[number], median[number], q3[number] = np.quantile(own, [0.25, 0.5, 0.75], axis=0)
        reach = 1.5 * (q3[number] - q1[number])
        within = (own >= q1[number] - reach) & (own <= q3[number] + reach)
        low[number] = np.minimum(np.where(within, own, np.inf).min(0), q1[number])
        high[number] = np.maximum(np.where(within, own, -np.inf).max(0), q3[number])
        outliers.append(tuple(members[~within[:, j]].astype(np.int64) for j in range(c)))
    return ClassSummary(np.bincount(labels, minlength=k), mean, q1, median, q3, low, high, tuple(outliers))


@dataclass(frozen=True, eq=False)
class Concentration:
    """How much of `Σ|A|` the largest training points carry; one number per logit, or one number.

    `top`: the share of the `k` largest. `top_percent`: the share of the largest 1 % (at least one point).
    `participation`: `(Σ|A|)² / (N Σ A²)`, 1 when all points carry the same share and 1/N when one carries everything.
    """

    k: int
    top: np.ndarray
    top_percent: np.ndarray
    participation: np.ndarray


def concentration(values: Any, k: int = 5) -> Concentration:
    """Top-k share, top-1 % share and participation ratio of attributions (n,) or (n, c), NaN where all are 0; O(n c log n).

    Examples:
        >>> found = concentration(np.array([1.0, -1.0, 1.0, 1.0]), k=1)
        >>> float(found.top), float(found.participation)
        (0.25, 1.0)
    """
    sizes = np.abs(finite(values, "attributions", 1, 2))
    if not 1 <= k <= len(sizes):
        raise UsageError(f"got k={k} for {len(sizes)} training points; expected 1 … {len(sizes)}")
    running = np.cumsum(-np.sort(-sizes, axis=0), axis=0)
    total = running[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return Concentration(
            k,
            np.asarray(running[k - 1] / total),
            np.asarray(running[max(1, len(sizes) // 100) - 1] / total),
            np.asarray(total**2 / (len(sizes) * np.square(sizes).sum(0))),
        )

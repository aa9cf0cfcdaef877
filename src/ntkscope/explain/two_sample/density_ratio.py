"""Density ratios: how much more often an item like this one occurs in the second sample than in the first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float64, Int64
from sklearn.linear_model import LogisticRegression

from ntkscope.core import numpy_generator
from ntkscope.explain.two_sample.pooled import Pooled

STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # inverse penalties C per item, for components of unit variance in sum
COMPONENTS = 100
LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class DensityRatio:
    """`p_b(x) / p_a(x)` at the items of each sample: above 1 where x is more typical of b.

    `a` are also the weights with which the first sample looks like the second one.
    """

    a: Float64[np.ndarray, " n"]
    b: Float64[np.ndarray, " m"]

    @property
    def effective(self) -> float:
        """The effective size `(Σw)² / Σw²` of the first sample weighted to look like the second. Kish (1965).

        >>> DensityRatio(np.array([1.0, 1.0, 0.0]), np.ones(2)).effective
        2.0
        """
        return float(self.a.sum() ** 2 / np.square(self.a).sum())

    def accepted(self, seed: int = 0, *, most: float | int | None = None) -> Int64[np.ndarray, " k"]:
        """Items of the first sample that look like the second, by rejection sampling: kept with probability `ratio / most`.

        `most` is the ratio from which an item is always kept: by default the largest one.

        >>> DensityRatio(np.array([1.0, 0.0, 1.0]), np.ones(2)).accepted().tolist()
        [0, 2]
        """
        drawn = numpy_generator(seed, "shift", "accepted").random(len(self.a))
        return np.flatnonzero(drawn < self.a / (self.a.max() if most is None else most))


def odds(pooled: Pooled, folds: Int64[np.ndarray, " n"]) -> DensityRatio:
    """Cross-fitted odds of a logistic regression on principal components, times `n_a / n_b` of the items it was fitted on.

    The penalty is the one with the smallest cross-fitted log-loss.
    """
    X = pooled.components(COMPONENTS)
    X = X * np.sqrt(len(X) / np.square(X).sum())
    second = np.arange(len(X)) >= pooled.first
    best = min((_log_odds(X, second, folds, strength) for strength in STRENGTHS), key=lambda found: found[1])
    ratio = np.exp(best[0])
    return DensityRatio(ratio[~second], ratio[second])


def _log_odds(
    X: Float64[np.ndarray, "n d"], second: Bool[np.ndarray, " n"], folds: Int64[np.ndarray, " n"], strength: float
) -> tuple[Float64[np.ndarray, " n"], float]:
    """Logarithms of the ratio at every item by fits without its fold, and their log-loss with the samples' own shares."""
    found = np.empty(len(X))
    for fold in np.unique(folds):
        held = folds == fold
        fit = LogisticRegression(C=strength * len(X), max_iter=500).fit(X[~held], second[~held])
        shares = np.log(second[~held].sum() / (~second[~held]).sum())
        found[held] = fit.decision_function(X[held]) - shares
    logits = found + np.log(second.sum() / (~second).sum())
    return found, float(np.logaddexp(0, np.where(second, -logits, logits)).mean())


def kernel_density_ratio(plane: Float64[np.ndarray, "n 2"], first: int) -> DensityRatio:
    """The ratio of two Gaussian kernel density estimates (Scott's rule) in a plane; at an item of either sample, that
    sample's estimate leaves the item itself out."""
    a, b = plane[:first], plane[first:]
    at = {(i, j): _density(x, y, i == j) for i, x in enumerate((a, b)) for j, y in enumerate((a, b))}
    return DensityRatio(*(at[1, side] / np.maximum(at[0, side], LEAST * at[0, 0].max()) for side in (0, 1)))


def _density(
    sample: Float64[np.ndarray, "n 2"], points: Float64[np.ndarray, "k 2"], same: bool
) -> Float64[np.ndarray, " k"]:
    kde = scipy.stats.gaussian_kde(sample.T)
    values = np.asarray(kde(points.T))
    if not same:
        return values
    n = len(sample)
    peak = 1 / np.sqrt(np.linalg.det(2 * np.pi * kde.covariance))
    return np.maximum((n * values - peak) / (n - 1), 0)

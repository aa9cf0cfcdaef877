"""The classifier two-sample test: can a linear classifier tell, of items it was not fitted on, which sample they are from?

The classifier is ridge regression on the labels (a shrunk linear discriminant), fitted without each fold in turn; what counts
is the area under the ROC curve of its scores. Lopez-Paz & Oquab (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.special
import scipy.stats
from jaxtyping import Bool, Float64, Int64

from ntkscope.explain.two_sample.pooled import Pooled

FOLDS = 10
FREEDOM = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95, 0.999)  # degrees of freedom, as parts of the most
DIGITS = 12  # of scores, beyond which rounding would order items that are equal
MOST = 0.95  # degrees of freedom per item: wide vectors are told apart best by fits that nearly interpolate


def ridges(s: Float64[np.ndarray, " r"], items: int) -> Float64[np.ndarray, " c"]:
    """Ridges λ whose `Σ s²/(s² + λ)` takes the values to choose from, the strongest first; fewer than items."""
    squares = np.square(s)
    wanted = np.array(FREEDOM) * min(len(s), MOST * (items - 1))
    low = np.full(len(wanted), np.log(squares[-1]) - 30)
    high = np.full(len(wanted), np.log(squares[0]) + np.log(len(s) * items))
    for _ in range(50):  # halved each time
        middle = (low + high) / 2
        above = (squares / (squares + np.exp(middle)[:, None])).sum(1) > wanted
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.exp(high)


def chosen_ridges(
    s: Float64[np.ndarray, " r"], coordinates: Float64[np.ndarray, "r k"], total: Float64[np.ndarray, " k"], items: int
) -> Float64[np.ndarray, " k"]:
    """For every labelling the ridge with the least generalised cross-validation error; O(r k)."""
    energy, choices = np.square(coordinates), ridges(s, items)
    left = choices[:, None] / (np.square(s) + choices[:, None])  # (c, r)
    errors = total - energy.sum(0) + np.square(left) @ energy
    return choices[np.argmin(errors / np.square(items - 1 - (1 - left).sum(1))[:, None], axis=0)]


def cross_fitted(
    pooled: Pooled, labels: Bool[np.ndarray, "k n"], folds: Int64[np.ndarray, " n"]
) -> Float64[np.ndarray, "n k"]:
    """Scores of every item by ridge regressions fitted without its fold, for every labelling; one decomposition for all.

    With `H = 11ᵀ/n + U diag(s²/(s² + λ)) Uᵀ` the smoother of all items, predictions for a fold F left out are
    `z_F - (I - H_FF)⁻¹ (z - H z)_F`. λ is each labelling's own, by generalised cross-validation: O(n r k). A score is the
    prediction minus the mean label of the items it was fitted on: that mean knows the labels of the fold (more ones inside are
    fewer outside), and would push the area below 1/2 where there is nothing to tell.
    """
    U, s = pooled.decomposition
    n = len(U)
    z = labels.T.astype(np.float64)
    coordinates = U.T @ z
    chosen = chosen_ridges(s, coordinates, z.mean(0) * (1 - z.mean(0)) * n, n)
    scores = np.empty_like(z)
    for ridge in np.unique(chosen):
        columns = np.flatnonzero(chosen == ridge)
        kept = np.square(s) / (np.square(s) + ridge)
        here = z[:, columns]
        residuals = here - here.mean(0) - U @ (kept[:, None] * coordinates[:, columns])
        for fold in np.unique(folds):
            rows = np.flatnonzero(folds == fold)
            left_out = np.eye(len(rows)) - (U[rows] * kept) @ U[rows].T - 1 / n
            solved = scipy.linalg.solve(left_out, residuals[rows], assume_a="pos")
            mean = (here.sum(0) - here[rows].sum(0)) / (n - len(rows))
            scores[np.ix_(rows, columns)] = here[rows] - solved - mean
    return scores.round(DIGITS)


def areas(scores: Float64[np.ndarray, "n k"], labels: Bool[np.ndarray, "k n"]) -> Float64[np.ndarray, " k"]:
    """The share of pairs, one item of each sample, that the scores order rightly, ties half; O(n k log n).

    >>> areas(np.array([[0.1], [0.2], [0.3], [0.9]]), np.array([[False, True, False, True]]))
    array([0.75])
    """
    second = labels.sum(1)
    right = (_ranks(scores) * labels.T).sum(0) - second * (second + 1) / 2
    return right / (second * (len(scores) - second))


def _ranks(values: Float64[np.ndarray, "f k"]) -> Float64[np.ndarray, "f k"]:
    """Ranks 1, 2, … down each column, the mean rank for ties."""
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    if (ordered[1:] == ordered[:-1]).any():
        return np.asarray(scipy.stats.rankdata(values, axis=0))
    ranks = np.empty_like(values)
    np.put_along_axis(ranks, order, np.arange(1.0, len(values) + 1)[:, None], axis=0)
    return ranks


@dataclass(frozen=True, eq=False)
class Separation:
    """How well each labelling can be told: `auc[0]` for the samples themselves, whose items have `scores`."""

    auc: Float64[np.ndarray, " r"]
    scores: Float64[np.ndarray, " n"]


def separation(pooled: Pooled, labels: Bool[np.ndarray, "r n"], folds: Int64[np.ndarray, " n"]) -> Separation:
    """The area under the curve of every labelling, by cross-fitted ridge regressions."""
    scores = cross_fitted(pooled, labels, folds)
    return Separation(areas(scores, labels), scores[:, 0])


def auc_interval(
    scores: Float64[np.ndarray, " n"],
    second: Bool[np.ndarray, " n"],
    unit: Int64[np.ndarray, " n"],
    null: float = 0.0,
    confidence: float = 0.95,
) -> tuple[float, float, float]:
    """The area, and its interval from the placements of items (DeLong et al. 1988) added up by unit (Obuchowski 1997).

    On the logit scale, with Student's quantile. Scores of cross-fitted classifiers depend on each other through what these
    were fitted on, most where there is nothing to tell: `null`, the areas' standard deviation over rearrangements, replaces
    that of the placements at an area of 1/2 and counts by `4 area (1 - area)` elsewhere. Then the interval is of the mean
    area of classifiers fitted on so many items. Where no pair is out of order the lower end is `1 - 3/k`, k the units of the
    smaller sample. O(n log n).
    """
    below = scipy.stats.rankdata(scores)
    for which in (second, ~second):
        below[which] -= scipy.stats.rankdata(scores[which])  # how many of the other sample are below
    n, m = int((~second).sum()), int(second.sum())
    auc = float(below[second].sum() / (n * m))
    influence = np.where(second, (below / n - auc) / m, (1 - below / m - auc) / n)
    totals = np.bincount(unit, influence)
    error = len(totals) / (len(totals) - 1) * float(np.square(totals).sum())
    error = math.sqrt(error + 4 * auc * (1 - auc) * max(0.0, null**2 - error))
    fewest = min(len(np.unique(unit[second])), len(np.unique(unit[~second])))
    if auc in (0.0, 1.0):
        return (auc, max(0.0, 1 - 3 / fewest), 1.0) if auc else (auc, 0.0, min(1.0, 3 / fewest))
    reach = float(scipy.stats.t.ppf(0.5 + confidence / 2, max(1, fewest - 1))) * error / (auc * (1 - auc))
    centre = float(scipy.special.logit(auc))
    return auc, float(scipy.special.expit(centre - reach)), float(scipy.special.expit(centre + reach))


def quadratic_scores(
    X: Float64[np.ndarray, "n d"], labels: Bool[np.ndarray, "k n"], folds: Int64[np.ndarray, " n"]
) -> Float64[np.ndarray, "n k"]:
    """Log-odds of two Gaussians fitted without each item's fold, for every labelling: quadratic discriminant analysis."""
    scores = np.zeros(labels.shape)
    floor = 1e-6 * np.square(X - X.mean(0)).mean() * np.eye(X.shape[1])
    for fold in np.unique(folds):
        held = folds == fold
        for sign, inside in ((1, labels[:, ~held]), (-1, ~labels[:, ~held])):
            fitted = inside.sum(1) > 1
            weights = inside[fitted] / inside[fitted].sum(1, keepdims=True)  # (k, n)
            centres = weights @ X[~held]
            apart = (X[~held] - centres[:, None]) * np.sqrt(weights)[..., None]  # (k, n, d)
            covariances = np.swapaxes(apart, 1, 2) @ apart + floor
            away = X[held] - centres[:, None]
            distance = (away @ np.linalg.inv(covariances) * away).sum(2)
            found = -sign * 0.5 * (distance + np.linalg.slogdet(covariances)[1][:, None])
            scores[np.ix_(fitted, held)] += found
    return scores.T

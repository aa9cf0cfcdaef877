"""The linear datamodeling score: whether an attribution predicts what training on other subsets does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from scipy.stats import rankdata

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.core.arguments import finite, two_vectors
from ntkscope.core.checked import Count, Numbers, Probability
from ntkscope.measures.registry import measure
from ntkscope.measures.uncertainty import bootstrap_means, percentile_interval


@dataclass(frozen=True, eq=False)
class DatamodelingScore:
    """Spearman's rank correlation over subsets of each test item, their mean, and its interval over test items."""

    items: Float64[np.ndarray, " m"]
    mean: float
    interval: tuple[float, float]
    level: float = 0.95

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.3f} ({100 * self.level:g} %: {low:.3f} … {high:.3f}; {len(self.items)} test items)"


def linear_datamodeling_score(
    predicted: Any, actual: Any, *, level: Probability = 0.95, resamples: Count = 2000, seed: int = 0
) -> DatamodelingScore:
    """How well predicted outputs order the subsets of the training set as real training on them does; O(s m log s).

    `predicted` and `actual` are (subsets, items): row S holds the sum of the attributions of the points in S, and the
    outputs (margins) of networks trained on S. Each item's score is Spearman's ρ over the subsets, 0 where its predictions
    are all equal, since they order nothing; the interval is a bootstrap over items. Ilyas et al. (2022), Park et al. (2023),
    definition 2.3. Noise of training that is not averaged out of `actual` lowers it for every method.

    Examples:
        >>> actual = np.array([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0]])
        >>> found = linear_datamodeling_score(actual**3, actual)
        >>> found.items.tolist(), found.mean
        ([1.0, 1.0], 1.0)
    """
    items = item_scores(predicted, actual, constant=0.0)
    means = bootstrap_means(items[:, None], lambda found: found, resamples=resamples, seed=seed)
    return DatamodelingScore(items, float(items.mean()), percentile_interval(means[:, 0], level, len(items)), level)


def datamodeling_difference(
    first: DatamodelingScore, second: DatamodelingScore, *, resamples: Count = 2000, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """The first score minus the second and its interval: a paired bootstrap over the test items both were measured on.

    Examples:
        >>> actual = np.array([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0]])
        >>> good, bad = (linear_datamodeling_score(sign * actual, actual) for sign in (1, -1))
        >>> datamodeling_difference(good, bad)
        (2.0, (2.0, 2.0))
    """
    if len(first.items) != len(second.items):
        raise UsageError(
            f"got scores of {len(first.items)} and {len(second.items)} items; expected the same test items"
        )
    gaps = first.items - second.items
    means = bootstrap_means(gaps[:, None], lambda found: found, resamples=resamples, seed=seed)
    return float(gaps.mean()), percentile_interval(means[:, 0], first.level, len(gaps))


@measure("spearman", of="two scores", low=-1, high=1, best=1)
def spearman(a: Any, b: Any) -> float:
    """Spearman's ρ of two scores of the same items: the correlation of their ranks, ties by their mean rank; O(n log n).

    Examples:
        >>> spearman([1, 2, 3], [1, 8, 27]), spearman([1, 2, 3], [3, 2, 1])
        (1.0, -1.0)
    """
    left, right = two_vectors(a, b)
    return float(item_scores(left[:, None], right[:, None])[0])


def item_scores(predicted: Any, actual: Any, constant: float | None = None) -> Float64[np.ndarray, " m"]:
    """Spearman's ρ over the subsets of each test item; `constant` where its predictions are all equal, an error if None.

    Examples:
        >>> item_scores([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]], [[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]])
        array([ 1., -1.])
    """
    left, right = finite(predicted, "predicted", 2), finite(actual, "actual", 2)
    if left.shape != right.shape or len(left) < 2 or left.shape[1] < 1:
        raise UsageError(
            f"got predictions of shape {left.shape} and outputs of shape {right.shape}; expected (subsets, items) of both, with"
            " at least 2 subsets"
        )
    centred = [ranks - ranks.mean(0) for ranks in (rankdata(left, axis=0), rankdata(right, axis=0))]
    sizes = [np.square(ranks).sum(0) for ranks in centred]
    for size, name in zip(sizes, ("predicted", "actual")):
        if not size.all() and (name == "actual" or constant is None):
            raise NumericalError(
                f"the {name} values of item {int(np.argmin(size))} are the same for every subset: their rank correlation is"
                " undefined; leave that item out"
            )
    found = (centred[0] * centred[1]).sum(0) / np.sqrt(np.where(sizes[0] > 0, sizes[0], 1.0) * sizes[1])
    return np.clip(np.where(sizes[0] > 0, found, constant or 0.0), -1, 1)


def random_subsets(points: Count, count: Count, *, share: float = 0.5, seed: int = 0) -> Bool[np.ndarray, "s n"]:
    """`count` random subsets of the points as masks, each with the same number of them: halves unless `share` differs.

    Examples:
        >>> random_subsets(10, 3).sum(1).tolist()
        [5, 5, 5]
    """
    size = round(share * points)
    if not 0 < size < points:
        raise UsageError(
            f"got {count} subsets of {size} of {points} points; expected at least one, none empty and none with all points"
        )
    random = numpy_generator(seed, "datamodeling subsets")
    masks = np.zeros((count, points), dtype=bool)
    for mask in masks:
        mask[random.permutation(points)[:size]] = True
    return masks


def group_predictions(scores: Numbers, subsets: Bool[np.ndarray, "s n"]) -> Float64[np.ndarray, "s m"]:
    """`Σ_{i ∈ S} score(x, i)` for every subset S and test item x, from scores (items, points).

    Examples:
        >>> group_predictions([[1.0, 2.0, 4.0]], np.array([[True, False, True]])).tolist()
        [[5.0]]
    """
    values = finite(scores, "scores", 2)
    if values.shape[1] != subsets.shape[1]:
        raise UsageError(
            f"got scores of shape {values.shape} for subsets of {subsets.shape[1]} points; expected (items, points)"
        )
    return subsets.astype(np.float64) @ values.T

"""Probes: how well simple classifiers do on the first d coordinates of a representation, for a grid of d."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import is_whole, tensor_of
from ntkscope.core.checked import Count, Positive
from ntkscope.linalg.features.rows import FeatureRows, column_moments
from ntkscope.measures._sweeps import linear_sweep, neighbour_sweep

PROBES = ("knn", "ncc", "svm", "logistic")
GRID = (*range(1, 21), 30, 40, 50, 100, 150, 200, 250, 300, 400, 500, 750, 1000, 1250, 1500, 1750, 2000)
THEN = 1000
ROWS = 4096  # converted to float64 at a time
FAR = 16.0  # times a column's variance, the square of its mean beyond which distances would lose digits
EXTREME = 40  # powers of two of the largest deviation beyond which squares are at risk


def grid(width: int) -> list[int]:
    """The published grid of dimensions: 1 … 20, 30 … 2000, then every 1000 until the width, which comes last.

    Examples:
        >>> grid(30)[-3:], len(grid(4096)), grid(4096)[-3:]
        ([19, 20, 30], 39, [3000, 4000, 4096])
    """
    if width < 1:
        raise UsageError(f"got width={width}; expected at least one coordinate")
    below = [d for d in (*GRID, *range(GRID[-1] + THEN, width, THEN)) if d < width]
    return [*below, width]


@dataclass(frozen=True, eq=False)
class ProbeSweep:
    """Predictions and accuracies of each probe in the first d coordinates, for each d of the rising `dims`.

    `predictions[probe][d]` are labels of the test items, whose true ones are `labels`; `classes` are those of the training
    items. `variance[d]`: the share of the training items' variance in the first d coordinates. `C[probe][d]` and
    `objective[probe][d]`: the strengths and minima of the linear probes.
    """

    dims: tuple[int, ...]
    classes: tuple[int, ...]
    labels: Int[Tensor, " m"]
    predictions: Mapping[str, Mapping[int, Int[Tensor, " m"]]]
    accuracy: Mapping[str, Mapping[int, float]]
    variance: Mapping[int, float]
    C: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    objective: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(self.predictions)

    def smallest(self, share: float = 0.9) -> dict[str, int]:
        """For each probe the smallest d of the grid whose accuracy is at least `share` of that probe's best.

        The marks of Paper 4, section 3: of a best accuracy of 96 %, 90 % is 86.4 %.
        """
        if not 0 < share <= 1:
            raise UsageError(f"got share={share}; expected a share of the best accuracy, above 0 and at most 1")
        return {
            probe: next(d for d in self.dims if accuracy[d] >= share * max(accuracy.values()))
            for probe, accuracy in self.accuracy.items()
        }

    def best(self) -> dict[str, int]:
        """For each probe the d with the best accuracy on these test items, the smallest of equal ones.

        Chosen on the items it is judged by, which is the published rule and flatters; `ns.explain.probes` chooses on a
        validation split too.
        """
        return {
            probe: max(self.dims, key=lambda d, a=accuracy: (a[d], -d))  # type: ignore[misc]
            for probe, accuracy in self.accuracy.items()
        }


def sweep(
    Z_train: Any,
    y_train: Any,
    Z_test: Any,
    y_test: Any,
    dims: Sequence[int],
    *,
    probes: Sequence[str] = PROBES,
    k: Count = 10,
    C: Positive | None = None,
    total: Positive | None = None,
    ties: Literal["nearest", "first"] = "nearest",
) -> ProbeSweep:
    """Probes of the first d columns of Z, such as scores on principal components, for every d of `dims`.

    "knn": the k nearest training items vote, Euclidean; of tied classes the one of the nearest neighbour wins
    (`ties="nearest"`), or the first (`"first"`, scikit-learn's rule). "ncc": the nearest class centre. "svm": one-vs-rest
    squared hinge. "logistic": softmax. `C`: the strength of the linear probes' loss; None: chosen on a split of the training
    items. `total`: the variance of all coordinates, also those not in Z, for `.variance`.

    One pass serves all d: distances and scores grow by the columns that are added, linear probes start from the fit before
    them. O(n m p) for "knn", O((n + m) p classes) for "ncc".

    Examples:
        >>> Z = torch.tensor([[0.0, 1.0], [0.0, -1.0], [4.0, 1.0], [4.0, -1.0]])
        >>> found = sweep(Z, [0, 0, 1, 1], Z, [0, 0, 1, 1], [1, 2], probes=("ncc",))
        >>> found.accuracy["ncc"][1], round(found.variance[1], 2), found.smallest(0.9)
        (1.0, 0.8, {'ncc': 1})
    """
    train, test = _scores(Z_train, "Z_train"), _scores(Z_test, "Z_test")
    if train.shape[1] != test.shape[1]:
        raise UsageError(f"got {train.shape[1]} columns for training and {test.shape[1]} for testing; expected as many")
    dtype = torch.promote_types(train.dtype, test.dtype)
    train, test = train.to(dtype), test.to(train.device, dtype)
    spread = column_moments(FeatureRows.of(train))
    labels, truth = (
        _labels(y, len(Z), name).to(train.device)
        for y, Z, name in ((y_train, train, "y_train"), (y_test, test, "y_test"))
    )
    classes, numbers = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise UsageError(
            f"got training labels of one class ({int(classes[0])}); expected at least two classes to tell apart"
        )
    steps = _dims(dims, train.shape[1])
    _check_options(probes, k, len(train))
    if not float(spread[1].sum()) > 0:
        raise UsageError("Z_train has the same row for every item; expected rows that vary: look at the layer")
    near, near_test = (_centred(Z, *spread) for Z in (train, test))
    predictions: dict[str, dict[int, Tensor]] = {}
    strengths: dict[str, Mapping[int, float]] = {}
    objective: dict[str, Mapping[int, float]] = {}
    for probe in probes:
        if probe == "knn":
            found: Mapping[int, Tensor] = neighbour_sweep(near, numbers, near_test, steps, k, ties)
        elif probe == "ncc":
            found = _centre_sweep(near, numbers, near_test, steps)
        else:
            linear = linear_sweep(probe, train.to(torch.float64), numbers, test.to(torch.float64), steps, C)
            found, strengths[probe], objective[probe] = linear.predictions, linear.C, linear.objective
        predictions[probe] = {d: classes[found[d]] for d in steps}
    sums = spread[1].cumsum(0)
    whole = float(sums[-1]) if total is None else float(total)
    return ProbeSweep(
        dims=tuple(steps),
        classes=tuple(classes.tolist()),
        labels=truth,
        predictions=predictions,
        accuracy={
            probe: {d: float((answers == truth).double().mean()) for d, answers in by_d.items()}
            for probe, by_d in predictions.items()
        },
        variance={d: float(sums[d - 1]) / whole for d in steps},
        C=strengths,
        objective=objective,
    )


def _centre_sweep(
    train: Tensor, numbers: Int[Tensor, " n"], test: Tensor, dims: Sequence[int]
) -> dict[int, Int[Tensor, " m"]]:
    """The class with the nearest centre in the first d coordinates, for every d of the rising `dims`.

    `argmin_c ‖z - μ_c‖² = argmax_c Σ_j (2 z_j μ_cj - μ_cj²)`, a sum that grows with d, and affine in z.
    """
    counts = numbers.bincount()
    sums = torch.zeros(len(counts), train.shape[1], dtype=torch.float64, device=train.device)
    for rows, own in zip(train.split(ROWS), numbers.split(ROWS)):
        sums.index_add_(0, own, rows.to(torch.float64))
    centres: Float64[Tensor, "c p"] = sums / counts[:, None]
    scores = torch.zeros(len(test), len(centres), dtype=torch.float64, device=test.device)
    found = {}
    for low, d in pairwise([0, *dims]):
        fresh = centres[:, low:d]
        scores = scores + 2 * (test[:, low:d].to(torch.float64) @ fresh.T) - fresh.square().sum(1)
        found[d] = scores.argmax(1)
    return found


def _centred(
    Z: Float[Tensor, "n p"], mean: Float64[Tensor, " p"], variance: Float64[Tensor, " p"]
) -> Float[Tensor, "n p"]:
    """Rows whose products keep the digits of their distances: columns far from 0 are moved near it, all to one moderate size.

    By multiples and powers of two, which round no numbers that have few digits: equal distances stay equal.
    """
    unit = torch.maximum(variance.sqrt(), mean.abs() * 2.0**-40).clamp_min(1e-300)
    unit = torch.exp2(torch.log2(unit).floor())
    away = torch.where(mean.square() > FAR * variance, (mean / unit).round() * unit, torch.zeros_like(mean))
    power = math.floor(math.log2(float(variance.max())) / 2)
    if abs(power) > EXTREME:  # their squares would leave the range of float32
        return ((Z.to(torch.float64) - away) * 2.0**-power).to(Z.dtype)
    return (Z.to(torch.float64) - away).to(Z.dtype) if bool(away.any()) else Z


def _scores(values: Any, name: str) -> Tensor:
    """Floating-point rows, finite."""
    array = tensor_of(values, name, 2, keep=True)
    return array.to(torch.promote_types(array.dtype, torch.float32))


def _labels(y: Any, items: int, name: str) -> Int[Tensor, " n"]:
    values = tensor_of(y, name, 1)
    if len(values) != items or bool((values.to(torch.int64) != values).any()):
        raise UsageError(f"got {name} for {len(values)} items; expected a whole number for each of {items}")
    return values.to(torch.int64)


def _dims(dims: Sequence[int], width: int) -> list[int]:
    listed = list(dims) if isinstance(dims, Iterable) else []
    steps = sorted({int(d) for d in listed if is_whole(d)})
    if not steps or steps[0] < 1 or steps[-1] > width or not all(map(is_whole, listed)):
        raise UsageError(
            f"got dims={dims!r} for {width} coordinates; expected whole numbers from 1 to {width}, at least one: compute"
            " more components, or leave the larger ones out"
        )
    return steps


def _check_options(probes: Sequence[str], k: int, items: int) -> None:
    named = not isinstance(probes, str) and isinstance(probes, Iterable)
    if not named or not probes or any(probe not in PROBES for probe in probes):
        raise UsageError(f"got probes={probes!r}; expected some of {', '.join(PROBES)}")
    if "knn" in probes and k > items:
        raise UsageError(f"got k={k!r} neighbours of {items} training items; expected 1 … {items}")

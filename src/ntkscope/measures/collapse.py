"""Neural collapse: how far the features of a layer have collapsed to their class means, and how those are arranged.

μ_c is the mean of the features h of class c, μ the mean of the μ_c, and every class counts the same, however many items it
has: `Σ_W = 1/C Σ_c E_c (h - μ_c)(h - μ_c)ᵀ`, `Σ_B = 1/C Σ_c (μ_c - μ)(μ_c - μ)ᵀ`. All measures are 0 at full collapse.
Papyan, Han & Donoho, "Prevalence of neural collapse during the terminal phase of deep learning training" (2020); CDNV:
Galanti, György & Hutter (2022).

Two passes over the features, O(npC), and nothing larger than (C, p) is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import labels_of, plain_array, tensor_of
from ntkscope.linalg.features.rows import features_of, finite_blocks
from ntkscope.measures.registry import measure


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """What the measures of collapse need to know of a layer's features; C classes, r directions between their means.

    `means`: in units of `scale`, around `centre`. `within`: `E_c ‖h - μ_c‖²` of each class; `along`: `E_c ⟨h - μ_c, v⟩²` of
    each class along the r eigenvectors v of Σ_B whose eigenvalues `between` are not zero: at most C - 1. Both in units of
    `scale²`.
    """

    classes: Int64[np.ndarray, " c"]
    counts: Int64[np.ndarray, " c"]
    centre: Float64[Tensor, " p"]
    scale: float
    means: Float64[Tensor, "c p"]
    within: Float64[Tensor, " c"]
    along: Float64[Tensor, "c r"]
    between: Float64[Tensor, " r"]


@dataclass(frozen=True)
class Collapse:
    """All measures of one layer; `nc3` is None without a readout, `nc4` without decisions."""

    nc1: float
    nc2_norms: float
    nc2_angles: float
    cdnv: float
    nc3: float | None = None
    nc4: float | None = None


def class_moments(features: Any, y: Any) -> ClassMoments:
    """The moments of features (n, p) of items with labels y; at least two classes of at least two items each.

    Examples:
        >>> class_moments([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]], [0, 0, 1, 1]).within.tolist()  # in units of 2²
        [0.25, 0.25]
    """
    rows = features_of(features)
    labels = labels_of(y, rows.n)
    classes, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2 or counts.min() < 2:
        few = f"{counts.min()} item(s) of class {classes[counts.argmin()]}" if len(classes) > 1 else "one class"
        raise UsageError(f"got {few}; expected at least two classes and two items of each: leave the smaller ones out")
    shares = torch.zeros(rows.n, len(classes), dtype=torch.float64, device=rows.device)
    shares[torch.arange(rows.n), torch.from_numpy(index.reshape(-1))] = 1.0
    shares /= torch.from_numpy(counts).to(shares)  # (n, c): a class's mean is a weighted sum of items
    means = torch.zeros(len(classes), rows.width, dtype=torch.float64, device=rows.device)
    for span, block in finite_blocks(rows):
        means += shares[span].T @ block
    size, centre = float(means.norm()), means.mean(0)
    means = means - centre
    scale = float(means.abs().max())
    if not scale > np.finfo(float).eps * size:
        raise NumericalError(
            "the class means coincide: there is nothing between classes that collapse could be seen against"
        )
    means = means / scale
    directions, between = _between(means, size / scale)
    within, along = torch.zeros_like(means[:, 0]), means.new_zeros(len(classes), len(between))
    place = torch.from_numpy(index.reshape(-1)).to(rows.device)
    for span, block in finite_blocks(rows):
        away = (block - centre) / scale - means[place[span]]
        within += shares[span].T @ away.square().sum(1)
        along += shares[span].T @ (away @ directions.T).square()
    return ClassMoments(classes, counts, centre, scale, means, within, along, between)


def _between(means: Float64[Tensor, "c p"], size: float) -> tuple[Float64[Tensor, "r p"], Float64[Tensor, " r"]]:
    """Eigenvectors and eigenvalues of Σ_B that are not zero but for rounding of means of this size; at most c - 1."""
    _, singular, vectors = torch.linalg.svd(means, full_matrices=False)
    most = min(len(means) - 1, len(singular))
    noise = np.finfo(float).eps * max(means.shape) * max(float(singular[0]), size)
    rank = int((singular[:most] > noise).sum())
    if not rank:
        raise NumericalError(
            "the class means coincide: there is nothing between classes that collapse could be seen against"
        )
    return vectors[:rank], singular[:rank].square() / len(means)


@measure("nc1", of="features and labels", low=0, best=0)
def nc1(features: Any, y: Any) -> float:
    """`tr(Σ_W Σ_B⁺) / C`: variation within classes over that between them, in the span of the class means.

    Σ_B has rank C - 1 at most. Its pseudo-inverse is taken there, from the C class means: one of the (p, p) matrix at the
    usual cut-off inverts rounding errors.

    Examples:
        >>> nc1([[0.0, -1.0], [0.0, 1.0], [4.0, -1.0], [4.0, 1.0]], [0, 0, 1, 1])  # they vary across the means' direction alone
        0.0
        >>> round(nc1([[-1.0], [1.0], [3.0], [5.0]], [0, 0, 1, 1]), 9)  # 1 within, 4 between, two classes
        0.125
    """
    return _nc1(class_moments(features, y))


@measure("nc2-norms", of="features and labels", low=0, best=0)
def nc2_norms(features: Any, y: Any) -> float:
    """`std_c ‖μ_c - μ‖ / mean_c ‖μ_c - μ‖`: how unequal the distances of the class means from their centre are.

    Examples:
        >>> nc2_norms([[1.0, 0.0]] * 2 + [[-1.0, 0.0]] * 2 + [[0.0, 2.0]] * 2 + [[0.0, -2.0]] * 2, [0, 0, 1, 1, 2, 2, 3, 3])
        0.3333333333333333
    """
    return _nc2_norms(class_moments(features, y))


@measure("nc2-angles", of="features and labels", low=0, high=2, best=0)
def nc2_angles(features: Any, y: Any) -> float:
    """The mean over pairs of classes of `|cos(μ_c - μ, μ_c′ - μ) + 1 / (C - 1)|`: 0 for a simplex's equal angles.

    Examples:
        >>> cross = [[1.0, 0.0]] * 2 + [[-1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2 + [[0.0, -1.0]] * 2
        >>> round(nc2_angles(cross, [0, 0, 1, 1, 2, 2, 3, 3]), 6)
        0.444444
    """
    return _nc2_angles(class_moments(features, y))


@measure("cdnv", of="features and labels", low=0, best=0)
def cdnv(features: Any, y: Any) -> float:
    """The mean over pairs of classes of `(E_c ‖h - μ_c‖² + E_c′ ‖h - μ_c′‖²) / (2 ‖μ_c - μ_c′‖²)`.

    Class-distance normalised variance: unlike `nc1` it counts variation in every direction. Galanti, György & Hutter (2022),
    equation 1.

    Examples:
        >>> cdnv([[0.0, -1.0], [0.0, 1.0], [4.0, -1.0], [4.0, 1.0]], [0, 0, 1, 1])
        0.0625
    """
    return _cdnv(class_moments(features, y))


@measure("nc3", of="features, labels and readout", low=0, high=2, best=0)
def nc3(features: Any, y: Any, readout: Any, *, centred: bool = False) -> float:
    """`‖W / ‖W‖ - M / ‖M‖‖` in Frobenius norms, M the rows `μ_c - μ`: how far the readout's rows are from the class means.

    `readout`: weights (classes, p), row c that of label c. `centred` first takes the mean row out of W, which softmax ignores.

    Examples:
        >>> nc3([[3.0, 0.0]] * 2 + [[-3.0, 0.0]] * 2, [0, 0, 1, 1], [[1.0, 0.0], [-1.0, 0.0]])
        0.0
    """
    return _nc3(class_moments(features, y), readout, centred)


@measure("nc4", of="features, labels and decisions", low=0, high=1, best=0)
def nc4(features: Any, y: Any, decisions: Any, *, at: Any = None) -> float:
    """The share of items for which the network decides for another class than the nearest class mean.

    `decisions`: the network's class for every item. `at`: features of other items, such as test items, whose decisions they
    are; the means are those of `features` with the labels y. Ties go to the smaller label.

    Examples:
        >>> nc4([[0.0], [1.0], [4.0], [5.0]], [0, 0, 1, 1], [0, 0, 1, 0])
        0.25
    """
    return _nc4(class_moments(features, y), features if at is None else at, decisions)


def collapse(
    features: Any, y: Any, *, readout: Any = None, decisions: Any = None, at: Any = None, centred: bool = False
) -> Collapse:
    """Every measure of one layer from the same two passes; what `readout`, `decisions` and `at` are, `nc3` and `nc4` say.

    Examples:
        >>> collapse([[0.0], [0.0], [4.0], [4.0]], [0, 0, 1, 1]).cdnv
        0.0
    """
    moments = class_moments(features, y)
    return Collapse(
        nc1=_nc1(moments),
        nc2_norms=_nc2_norms(moments),
        nc2_angles=_nc2_angles(moments),
        cdnv=_cdnv(moments),
        nc3=None if readout is None else _nc3(moments, readout, centred),
        nc4=None if decisions is None else _nc4(moments, features if at is None else at, decisions),
    )


def _nc1(moments: ClassMoments) -> float:
    return float((moments.along.mean(0) / moments.between).sum()) / len(moments.classes)


def _norms(moments: ClassMoments) -> Float64[Tensor, " c"]:
    """Distances of the class means from their centre."""
    return torch.linalg.vector_norm(moments.means, dim=1)


def _nc2_norms(moments: ClassMoments) -> float:
    norms = _norms(moments)
    return float(norms.std(correction=0) / norms.mean())


def _nc2_angles(moments: ClassMoments) -> float:
    norms = _norms(moments)
    if float(norms.min()) <= 1e-14 * float(norms.max()):
        at = moments.classes[int(norms.argmin())]
        raise NumericalError(
            f"the mean of class {at} is the centre of all class means: it has no direction, and no angles"
        )
    cosines = (moments.means @ moments.means.T) / torch.outer(norms, norms)
    count = len(norms)
    apart = ~torch.eye(count, dtype=torch.bool, device=cosines.device)
    return float((cosines[apart].clamp(-1, 1) + 1 / (count - 1)).abs().mean())


def _cdnv(moments: ClassMoments) -> float:
    one, other = torch.triu_indices(len(moments.classes), len(moments.classes), 1, device=moments.means.device)
    squares = (moments.means[one] - moments.means[other]).square().sum(1)  # differences: 1 - cos would lose near pairs
    if not float(squares.min()) > 0:
        k = int(squares.argmin())
        pair = moments.classes[int(one[k])], moments.classes[int(other[k])]
        raise NumericalError(
            f"classes {pair[0]} and {pair[1]} have the same mean: their distance-normalised variance is infinite"
        )
    return float(((moments.within[one] + moments.within[other]) / (2 * squares)).mean())


def _nc3(moments: ClassMoments, readout: Any, centred: bool) -> float:
    W = tensor_of(readout, "the readout", 2).to(moments.means.device)
    if W.shape[1] != moments.means.shape[1] or len(W) <= int(moments.classes.max()):
        raise UsageError(
            f"got a readout of shape {tuple(W.shape)}; expected ({int(moments.classes.max()) + 1} or more classes,"
            f" {moments.means.shape[1]}): one row of weights per class, for these features"
        )
    rows = W[torch.from_numpy(moments.classes).to(W.device)]
    rows = rows - rows.mean(0) if centred else rows
    if not bool(rows.any()):
        raise NumericalError("the readout's weights are all zero: they have no direction")
    rows = rows / rows.abs().max()  # squares of 1e-200 would be zero
    return float(torch.linalg.matrix_norm(rows / rows.norm() - moments.means / moments.means.norm()))


def _nc4(moments: ClassMoments, features: Any, decisions: Any) -> float:
    chosen = nearest_class(moments, features)
    network = plain_array(decisions)
    if network.shape != chosen.shape or network.dtype.kind not in "iu":
        raise UsageError(
            f"got decisions of shape {network.shape} and {network.dtype}; expected one class (a whole number) per item,"
            f" {len(chosen)} of them"
        )
    return float((chosen != network).mean())


def nearest_class(moments: ClassMoments, features: Any) -> Int64[np.ndarray, " n"]:
    """The label of the nearest class mean for every item; the smaller one of two at the same distance.

    Examples:
        >>> nearest_class(class_moments([[0.0], [1.0], [4.0], [5.0]], [0, 0, 3, 3]), [[2.0], [3.0]]).tolist()
        [0, 3]
    """
    rows = features_of(features)
    if rows.width != len(moments.centre):
        raise UsageError(f"got features of width {rows.width}; expected {len(moments.centre)}, as the class means have")
    means, centre = moments.means.to(rows.device), moments.centre.to(rows.device)
    half = means.square().sum(1) / 2
    found = [(((block - centre) / moments.scale) @ means.T - half).argmax(1).cpu() for _, block in finite_blocks(rows)]
    return moments.classes[torch.cat(found).numpy()]

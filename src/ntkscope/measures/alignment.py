"""Alignment: how much of a kernel points along the labels, or along another kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import class_numbers, finite, one_hot, plain_array, unit_of
from ntkscope.core.checked import Positive
from ntkscope.linalg import Gram, matrix_correlation
from ntkscope.measures._kernel_pairs import Kernel, centred_tile, kernel_pair, row_means, square
from ntkscope.measures.registry import measure


@measure("kernel-target-alignment", of="kernel and labels", low=-1, high=1, best=1)
def kernel_target_alignment(K: Kernel, y: Any, *, centred: bool = False) -> float:
    """`⟨K, Y Yᵀ⟩ / (‖K‖_F ‖Y Yᵀ‖_F)`, in [-1, 1]; O(n²) plus one product K Y.

    `y`: labels 0, 1, … (Y their one-hot matrix), or real targets (n,) or (n, t), such as ±1. `centred=True` first
    centres the features behind both sides (`K ↦ H K H`, `H = 1 - 11ᵀ/n`), so that a constant added to the kernel does
    not count. Cristianini et al. (2001); centred: Cortes, Mohri & Rostamizadeh (2012), definition 4.

    Examples:
        >>> y = torch.tensor([1.0, -1.0])
        >>> kernel_target_alignment(torch.outer(y, y), y)
        1.0
        >>> round(kernel_target_alignment(torch.eye(2), torch.tensor([0, 1])), 6)
        1.0
    """
    gram = square(K)
    Y = torch.from_numpy(_targets(y, gram.shape[0]))
    if centred:
        Y = Y - Y.mean(0)
    along = gram @ Y.to(gram.device)
    # centred on one side is centred on both: ⟨HKH, YYᵀ⟩ = ⟨K, (HY)(HY)ᵀ⟩
    inner = float((Y * along.double().cpu()).sum())
    scale = _norm(gram, centred) * float(torch.linalg.matrix_norm(Y.T @ Y))
    if not np.isfinite(inner) or not np.isfinite(scale):
        raise NumericalError(f"{gram!r} holds NaN or infinity; the alignment with it is undefined")
    if scale == 0:
        raise NumericalError("got a zero (or, centred, constant) kernel or target: the alignment with it is undefined")
    return min(1.0, max(-1.0, inner / scale))


@measure("centred-alignment", of="two kernels", low=-1, high=1, best=1)
def centred_alignment(K1: Kernel, K2: Kernel) -> float:
    """`⟨H K₁ H, H K₂ H⟩ / (‖H K₁ H‖ ‖H K₂ H‖)`, the centred kernel alignment (CKA); in [0, 1] for two kernels; O(n²).

    Cortes, Mohri & Rostamizadeh (2012); Kornblith et al. (2019), equation 3, name it CKA.

    Examples:
        >>> K = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        >>> round(centred_alignment(K, 5 * K + 7), 12)
        1.0
    """
    left, right = kernel_pair(K1, K2)
    means = [row_means(gram) for gram in (left, right)]
    products = torch.zeros(3, dtype=torch.float64)
    for rows, columns, a in left.tiles():
        tiles = (a, right[rows, columns].dense())
        a, b = (centred_tile(tile, rows, columns, *mean).flatten() for tile, mean in zip(tiles, means))
        products += torch.stack([a @ b, a @ a, b @ b])
    ab, aa, bb = products.tolist()
    if not np.isfinite([ab, aa, bb]).all():
        raise NumericalError("got a kernel that holds NaN or infinity: its alignment is undefined")
    # centring leaves rounding behind; a constant kernel must not be aligned with that
    if min(aa / _size(left), bb / _size(right)) < 1e-24:
        raise NumericalError("got a constant kernel: centred, it is zero, and alignment with it is undefined")
    return min(1.0, max(-1.0, ab / (aa**0.5 * bb**0.5)))


@measure("kernel-distance", of="two kernels", low=0, high=2, best=0)
def kernel_distance(K0: Kernel, K1: Kernel) -> float:
    """`1 - ⟨K₀, K₁⟩ / (‖K₀‖_F ‖K₁‖_F)`: how far a kernel rotated, whatever its scale; in [0, 1] for two kernels; O(n²).

    Fort et al., "Deep learning versus kernel learning" (2020), equation 4.

    Examples:
        >>> kernel_distance(torch.eye(2), 3 * torch.eye(2))
        0.0
        >>> kernel_distance(torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.0, 1.0])))
        1.0
    """
    distance = 1 - matrix_correlation(*kernel_pair(K0, K1))
    return 0.0 if abs(distance) < 4e-16 else distance


def power_in(vectors: Float[Tensor, "n e"], y: Any) -> Float64[np.ndarray, " e"]:
    """`‖u_iᵀ Y‖² / ‖Y‖²` for orthonormal columns u_i of `vectors` (n, e), such as the eigenvectors of a kernel; O(n e).

    `y` as in `kernel_target_alignment`. Baratin et al. (2021); Canatar, Bordelon & Pehlevan (2021).

    Examples:
        >>> power_in(torch.eye(2), torch.tensor([3.0, 4.0])).round(2).tolist()
        [0.36, 0.64]
    """
    Y = torch.from_numpy(_targets(y, len(vectors)))
    whole = float(Y.square().sum())
    if whole == 0:
        raise NumericalError("got targets that are zero (or, centred, constant): they have no power to share")
    return np.asarray(((vectors.detach().cpu().double().T @ Y).square().sum(1) / whole).numpy())


@measure("kernel-velocity", of="two kernels", low=0, best=0)
def kernel_velocity(K0: Kernel, K1: Kernel, *, elapsed: Positive = 1) -> float:
    """`‖K₁/‖K₁‖_F − K₀/‖K₀‖_F‖_F / elapsed`: how fast a kernel rotates, whatever its scale, between two moments; O(n²).

    With S the distance of `kernel_distance` it is `√(2 S) / elapsed`, which has a limit as the moments approach each other;
    Fort et al. (2020) divide S itself by the time between them.

    Examples:
        >>> round(kernel_velocity(torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.0, 2.0])), elapsed=2), 6)
        0.707107
    """
    before, after = kernel_pair(K0, K1)
    sizes = _norm(before, False), _norm(after, False)
    if not np.isfinite(sizes).all():
        raise NumericalError("got a kernel that holds NaN or infinity: its velocity is undefined")
    if min(sizes) == 0:
        raise NumericalError("got a zero kernel: it has no direction, and its velocity is undefined")
    # summed difference by difference: 1 - cos loses half the digits where little has changed
    moved = 0.0
    for rows, columns, tile in before.tiles():
        other = after[rows, columns].dense().detach().double().cpu()
        moved += float((other / sizes[1] - tile.detach().double().cpu() / sizes[0]).square().sum())
    return moved**0.5 / float(elapsed)


def _targets(y: Any, n: int) -> np.ndarray:
    """Labels as one-hot rows, one column for each class that occurs; real targets as they are, of any scale."""
    array = plain_array(y, "the targets")
    if (
        array.ndim == 1
        and len(array)
        and (array.dtype.kind in "bUS" or (array.dtype.kind in "iu" and array.min(initial=0) >= 0))
    ):
        classes, numbers = class_numbers(array)
        array = one_hot(numbers, len(classes)).numpy()
    Y = finite(array[:, None] if array.ndim == 1 else array, "the targets", 2)
    if len(Y) != n:
        raise UsageError(f"got {len(Y)} labels for a kernel of {n} rows; expected one per row")
    return Y / unit_of(Y)


def _tiles(gram: Gram, centred: bool) -> Iterator[Tensor]:
    means = row_means(gram) if centred else None
    for rows, columns, tile in gram.tiles():
        yield centred_tile(tile, rows, columns, *means) if means else tile.detach().double()


def _norm(gram: Gram, centred: bool) -> float:
    return sum(float(tile.square().sum()) for tile in _tiles(gram, centred)) ** 0.5


def _size(gram: Gram) -> float:
    return max(sum(float(tile.square().sum()) for tile in _tiles(gram, False)), 1e-300)

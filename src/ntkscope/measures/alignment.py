"""Alignment: how much of a kernel points along the labels, or along another kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import Gram, as_gram, matrix_correlation
from ntkscope.measures._checks import finite, plain_array
from ntkscope.measures.registry import measure

Kernel = Gram | Tensor | np.ndarray


@measure("kernel-target-alignment", of="kernel and labels", low=-1, high=1, best=1)
def kernel_target_alignment(K: Kernel, y: Any, *, centred: bool = False) -> float:
    """`⟨K, Y Yᵀ⟩ / (‖K‖_F ‖Y Yᵀ‖_F)`, in [-1, 1]; O(n²) plus one product K Y.

    `y`: labels 0, 1, … (Y their one-hot matrix), or real targets (n,) or (n, t), such as ±1. `centred=True` first
    centres the features behind both sides (`K ↦ H K H`, `H = 1 - 11ᵀ/n`), so that a constant added to the kernel does
    not count. Cristianini et al. (2001); centred: Cortes, Mohri & Rostamizadeh (2012), definition 4.

    >>> y = torch.tensor([1.0, -1.0])
    >>> kernel_target_alignment(torch.outer(y, y), y)
    1.0
    >>> round(kernel_target_alignment(torch.eye(2), torch.tensor([0, 1])), 6)
    1.0
    """
    gram = _square(K)
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

    >>> K = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    >>> round(centred_alignment(K, 5 * K + 7), 12)
    1.0
    """
    left, right = _pair(K1, K2)
    means = [_means(gram) for gram in (left, right)]
    products = torch.zeros(3, dtype=torch.float64)
    for rows, columns, a in left.tiles():
        tiles = (a, right[rows, columns].dense())
        a, b = (_centre(tile, rows, columns, *mean) for tile, mean in zip(tiles, means))
        products += torch.stack([(a * b).sum(), (a * a).sum(), (b * b).sum()])
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

    >>> kernel_distance(torch.eye(2), 3 * torch.eye(2))
    0.0
    >>> kernel_distance(torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.0, 1.0])))
    1.0
    """
    distance = 1 - matrix_correlation(*_pair(K0, K1))
    return 0.0 if abs(distance) < 4e-16 else distance


def _targets(y: Any, n: int) -> np.ndarray:
    array = plain_array(y)
    if array.ndim == 1 and array.dtype.kind in "iu" and len(array) and array.min() >= 0:
        array = np.eye(int(array.max()) + 1)[array]
    Y = finite(array[:, None] if array.ndim == 1 else array, "the targets", 2)
    if len(Y) != n:
        raise UsageError(f"got {len(Y)} labels for a kernel of {n} rows; expected one per row")
    return Y


def _square(K: Kernel) -> Gram:
    gram = as_gram(K)
    if gram.shape[0] != gram.shape[1] or gram.shape[0] < 1:
        raise UsageError(f"got a kernel of shape {gram.shape}; expected a square one, between the same items")
    return gram


def _pair(K1: Kernel, K2: Kernel) -> tuple[Gram, Gram]:
    left, right = _square(K1), _square(K2)
    if left.shape != right.shape:
        raise UsageError(f"got kernels of shapes {left.shape} and {right.shape}; expected both for the same items")
    return left, right


def _means(gram: Gram) -> tuple[Tensor, Tensor, float]:
    """Means of rows, of columns, and of all."""
    ones = torch.ones(gram.shape[0], dtype=torch.float64, device=gram.device)
    rows, columns = (gram @ ones).double().cpu() / len(ones), (gram.T @ ones).double().cpu() / len(ones)
    return rows, columns, float(rows.mean())


def _centre(tile: Tensor, rows: slice, columns: slice, row_means: Tensor, column_means: Tensor, mean: float) -> Tensor:
    return tile.detach().double().cpu() - row_means[rows, None] - column_means[None, columns] + mean


def _tiles(gram: Gram, centred: bool) -> Iterator[Tensor]:
    means = _means(gram) if centred else None
    for rows, columns, tile in gram.tiles():
        yield _centre(tile, rows, columns, *means) if means else tile.detach().double()


def _norm(gram: Gram, centred: bool) -> float:
    return sum(float(tile.square().sum()) for tile in _tiles(gram, centred)) ** 0.5


def _size(gram: Gram) -> float:
    return max(sum(float(tile.square().sum()) for tile in _tiles(gram, False)), 1e-300)

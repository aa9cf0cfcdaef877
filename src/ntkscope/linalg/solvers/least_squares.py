"""Dense least squares by SVD or QR of the matrix itself: the condition number is not squared, as it is in `AᵀA`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import number, tensor_of, unit_of
from ntkscope.core.checked import Fraction, NonNegative
from ntkscope.linalg.grams.mixed import product
from ntkscope.linalg.grams.operator import OperatorGram
from ntkscope.linalg.solvers.blocked import HouseholderQR, solve_triangular, upper_product
from ntkscope.linalg.solvers.system import column_units, in_units, right_hand_sides
from ntkscope.linalg.spectra.lanczos import top_eigenpairs

SVD_UP_TO = 20_000  # of the shorter side: LAPACK's workspace has 4 m² numbers, counted in 32 bits
ENTRIES = 2**31 - 1
_Found: TypeAlias = tuple[Tensor, int, Tensor | None]  # solution, rank, singular values where they are known


@dataclass(frozen=True, eq=False)
class LeastSquaresSolution:
    """What `least_squares` found, `solution` (p,) or (p, k) as `Y`, in float64, and the `cutoff` that decided it.

    `rank`: singular values above the cut-off, which is relative to the largest of what was inverted, `√W A` with the ridge
    below it. `singular_values`: of `√W A`, descending; None where QR found full rank without them. `residual_norm`:
    `‖√W (Y - A X)‖` of each column, (k,); `relative_residual`: the same over `‖√W Y‖`, 0 where both vanish. `method`: "svd"
    or "qr".
    """

    solution: Tensor
    rank: int
    cutoff: float
    singular_values: Tensor | None
    residual_norm: Tensor
    relative_residual: Tensor
    method: str


def least_squares(
    A: Tensor | np.ndarray,
    Y: Tensor | np.ndarray,
    *,
    ridge: NonNegative = 0.0,
    weights: Tensor | np.ndarray | None = None,
    rtol: Fraction | None = None,
) -> LeastSquaresSolution:
    """`X` that minimises `Σ_i w_i ‖(A X - Y)_i‖² + ridge ‖X‖²`, of minimum norm where there are many; O(n p min(n, p)).

    On a CPU by singular values: `X = V diag(s / (s² + ridge)) Uᵀ √W Y`, which is the pseudo-inverse of `√W A` with rows
    `√ridge I` below it. On CUDA, and where the shorter side exceeds 20,000, by Householder QR in place with these rows
    (columns, where p > n); singular values of R follow where R is singular to the cut-off. `AᵀA` is never formed. Singular
    values up to `rtol` times the largest count as zero; None is `max(n, p) ε`, ε the rounding unit of A's dtype. Float64
    throughout.

    Examples:
        >>> found = least_squares(torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([2.0, 4.0]))
        >>> found.solution.round(decimals=12).tolist(), found.rank, round(float(found.residual_norm), 12)
        ([1.5, 1.5], 1, 1.414213562373)
    """
    matrix = tensor_of(A, "A", 2, keep=True, empty=True)
    targets = right_hand_sides(Y, tuple(matrix.shape)).to(matrix.device, torch.float64)
    cutoff = max(1, *matrix.shape) * torch.finfo(matrix.dtype).eps if rtol is None else float(rtol)
    size = unit_of(matrix)
    matrix = matrix if size == 1 else matrix / size
    ridge = number(ridge / size / size, "ridge", expected=f"one beside which A, of size {size:.0e}, is not nothing")
    roots = row_roots(weights, matrix)
    unit = column_units(targets)
    scaled = roots * (targets / unit)

    small = min(matrix.shape) <= SVD_UP_TO and matrix.numel() <= ENTRIES
    by_svd = matrix.device.type == "cpu" and small
    solve = _by_svd if by_svd else _by_qr
    x, rank, values = solve(roots * matrix, scaled, ridge, cutoff)
    gap = torch.linalg.vector_norm(scaled - roots * product(matrix, x), dim=0)
    length = torch.linalg.vector_norm(scaled, dim=0)
    return LeastSquaresSolution(
        solution=in_units(x, unit, size).reshape(matrix.shape[1], *targets.shape[1:][: np.ndim(Y) - 1]),
        rank=rank,
        cutoff=cutoff,
        singular_values=None if values is None else values * size,
        residual_norm=gap * unit[0],
        relative_residual=torch.where(gap == 0, gap, gap / length),
        method="svd" if by_svd else "qr",
    )


def row_roots(weights: Tensor | np.ndarray | None, matrix: Tensor) -> Tensor:
    """`√w`, (n, 1), in float64 where the matrix is; weights are finite, none negative, not all zero."""
    n = matrix.shape[0]
    if weights is None:
        return torch.ones(n, 1, dtype=torch.float64, device=matrix.device)
    values = tensor_of(weights, "weights").to(matrix.device)
    if values.shape != (n,) or not bool(torch.isfinite(values).all() and (values >= 0).all() and (values > 0).any()):
        raise UsageError(
            f"got weights of shape {tuple(values.shape)} (smallest {float(values.min()) if values.numel() else None}); expected"
            f" ({n},), finite, none negative, not all zero"
        )
    return values.sqrt()[:, None]


def _by_svd(a: Tensor, y: Tensor, ridge: float, cutoff: float) -> _Found:
    left, values, right = torch.linalg.svd(a, full_matrices=False)
    inverted = torch.hypot(values, torch.full_like(values, math.sqrt(ridge)))
    kept = inverted > cutoff * inverted.max() if len(values) else inverted > 0
    factors = values[kept] / inverted[kept].square()  # s / (s² + ridge)
    x = right[kept].T @ (factors[:, None] * (left[:, kept].T @ y))
    return x, int(kept.sum()), values


def _by_qr(a: Tensor, y: Tensor, ridge: float, cutoff: float) -> _Found:
    """R of `(A; √ridge I)`, or of `(Aᵀ; √ridge I)` where A is wide: then X is the first part of `Q R⁻ᵀ Y`, of minimum norm."""
    n, p = a.shape
    wide, short = p > n, min(n, p)
    stacked = a.new_zeros(max(n, p) + (short if ridge else 0), short)
    stacked[: max(n, p)] = a.T if wide else a
    if ridge:
        stacked[max(n, p) :].fill_diagonal_(math.sqrt(ridge))
    del a
    qr = HouseholderQR(stacked)
    r = qr.values[:short]
    if wide:
        inner = y
    else:
        below = y if not ridge else torch.cat([y, y.new_zeros(short, y.shape[1])])
        inner = qr.apply(below, transposed=True)[:short]
    if _full_rank(r, cutoff):
        solved, rank, values = solve_triangular(r, inner, upper=True, transposed=wide), short, None
    elif short > SVD_UP_TO:
        raise UsageError(
            f"got a matrix of shape {(n, p)} that is singular to the cut-off {cutoff:.2g}; its singular values are out of reach"
            f" above {SVD_UP_TO} rows and columns: use ridge > 0, a smaller rtol, or lsmr"
        )
    else:
        solved, rank, values = _by_svd(r.triu().T if wide else r.triu(), inner, 0.0, cutoff)
        assert values is not None
        values = (values.square() - ridge).clamp_min(0).sqrt()
    if wide:
        padded = torch.cat([solved, solved.new_zeros(len(stacked) - short, y.shape[1])])
        solved = qr.apply(padded)[:p]
    return solved, rank, values


def _full_rank(r: Tensor, cutoff: float) -> bool:
    """Whether the smallest singular value of the triangle is above the cut-off with room to spare, by Lanczos on `(RᵀR)⁻¹`."""
    diagonal = r.diagonal().abs()
    if not len(r) or not bool((diagonal > 2 * cutoff * diagonal.max()).all()):
        return not len(r)

    def gram(v: Tensor) -> Tensor:
        return upper_product(r, upper_product(r, v), transposed=True)

    def inverse(v: Tensor) -> Tensor:
        return solve_triangular(r, solve_triangular(r, v, upper=True, transposed=True), upper=True)

    most, least = (
        float(top_eigenpairs(operator, 1, tolerance=1e-3)[0])
        for operator in (
            OperatorGram((len(r), len(r)), f, dtype=r.dtype, device=r.device, symmetric=True) for f in (gram, inverse)
        )
    )
    return math.isfinite(least) and math.sqrt(most * least) * cutoff < 0.5

"""Cholesky, triangular solves and Householder QR in place, block by block.

LAPACK and cuSOLVER count the entries of a matrix in 32 bits, so they stop at 46,340 rows. Here they see blocks alone; the
rest are matrix products on views, whose offsets are counted in 64 bits, and nothing of the size of the matrix is set aside.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.linalg.grams.gram import slices

BLOCK = 1024


def symmetrise(a: Float[Tensor, "n n"], block: int = BLOCK) -> None:
    """`(A + Aᵀ)/2` in place; O(n²)."""
    parts = list(slices(len(a), block))
    for i, rows in enumerate(parts):
        for columns in parts[i:]:
            mean = (a[rows, columns] + a[columns, rows].T) / 2
            a[rows, columns] = mean
            a[columns, rows] = mean.T


def cholesky(a: Float[Tensor, "n n"], block: int = BLOCK) -> bool:
    """`A = L Lᵀ`: L in the lower triangle of A, in place; n³/3 multiply-adds. False where A is not positive definite.

    The upper triangle is neither read nor written, so that after a failure `mirror` restores all but the diagonal.
    """
    parts = list(slices(len(a), block))
    for i, at in enumerate(parts):
        factor, failed = torch.linalg.cholesky_ex(a[at, at])
        if int(failed) or not bool(torch.isfinite(factor).all()):
            return False
        a[at, at] = factor + a[at, at].triu(1)
        below = slice(at.stop, len(a))
        if below.start == below.stop:
            break
        panel = torch.linalg.solve_triangular(factor.T, a[below, at], upper=True, left=False)
        a[below, at] = panel
        for columns in parts[i + 1 :]:  # the lower triangle of what is left
            _subtract(a, panel, columns, below.start)
    return True


def _subtract(a: Tensor, panel: Tensor, columns: slice, offset: int) -> None:
    """Subtract `panel panelᵀ` from a block column, in the block on the diagonal from its lower triangle alone."""
    own = panel[columns.start - offset : columns.stop - offset]
    a[columns, columns] -= (own @ own.T).tril()
    if columns.stop < len(a):
        a[columns.stop :, columns].addmm_(panel[columns.stop - offset :], own.T, alpha=-1)


def mirror(a: Float[Tensor, "n n"], diagonal: Float[Tensor, " n"], block: int = BLOCK) -> None:
    """The symmetric matrix whose upper triangle is that of A and whose diagonal is given, in place."""
    parts = list(slices(len(a), block))
    for i, rows in enumerate(parts):
        upper = a[rows, rows].triu(1)
        a[rows, rows] = upper + upper.T
        for columns in parts[i + 1 :]:
            a[columns, rows] = a[rows, columns].T
    a.diagonal().copy_(diagonal)


def clear_upper(a: Float[Tensor, "n n"], block: int = BLOCK) -> None:
    """Zeros above the diagonal, in place."""
    for rows in slices(len(a), block):
        a[rows, rows] = a[rows, rows].tril()
        a[rows, rows.stop :] = 0


def solve_triangular(
    a: Float[Tensor, "n n"], y: Float[Tensor, "n k"], *, upper: bool, transposed: bool = False, block: int = BLOCK
) -> Float[Tensor, "n k"]:
    """`T⁻¹ Y`, or `T⁻ᵀ Y`, T the upper or lower triangle of A; the other triangle is not read. O(n² k)."""
    x = y.clone()
    parts = list(slices(len(a), block))
    for at in parts if upper == transposed else reversed(parts):
        own = a[at, at].T if transposed else a[at, at]
        x[at] = torch.linalg.solve_triangular(own, x[at], upper=upper != transposed)
        rest = slice(at.stop, len(a)) if upper == transposed else slice(0, at.start)
        if rest.start < rest.stop:
            x[rest] -= (a[at, rest].T if transposed else a[rest, at]) @ x[at]
    return x


def upper_product(
    a: Float[Tensor, "n n"], v: Float[Tensor, "n k"], *, transposed: bool = False, block: int = BLOCK
) -> Float[Tensor, "n k"]:
    """`R V`, or `Rᵀ V`, R the upper triangle of A; what is below it is not read. O(n² k)."""
    out = torch.zeros_like(v)
    for at in slices(len(a), block):
        own, right = a[at, at].triu(), a[at, at.stop :]
        if transposed:
            out[at] += own.T @ v[at]
            out[at.stop :] += right.T @ v[at]
        else:
            out[at] = own @ v[at] + right @ v[at.stop :]
    return out


class HouseholderQR:
    """`A = Q R` of a matrix (m, n), m ≥ n, in place: R in the upper triangle, the reflectors below it; 2mn² multiply-adds.

    `Q = Π_k (I - V_k T_k V_kᵀ)` over blocks of columns, `T⁻¹ = striu(VᵀV) + diag(1/τ)`: Schreiber & Van Loan (1989),
    Joffrain et al. (2006). Q is applied, never formed.

    >>> a = torch.tensor([[3.0, 1.0], [4.0, 1.0]])
    >>> qr = HouseholderQR(a.clone())
    >>> bool(torch.allclose(qr.apply(qr.values.triu()), a))
    True
    """

    def __init__(self, a: Float[Tensor, "m n"], block: int = BLOCK // 4) -> None:
        self.values = a
        self._blocks: list[tuple[slice, Tensor, Tensor]] = []
        for at in slices(a.shape[1], block):
            packed, tau = torch.geqrf(a[at.start :, at])
            a[at.start :, at] = packed
            still = tau == 0  # nothing to reflect
            reflectors = _reflectors(packed, still)
            inverse = (reflectors.T @ reflectors).triu(1)
            inverse.diagonal().copy_(torch.where(still, 1.0, 1 / torch.where(still, 1.0, tau)))
            self._blocks.append((at, inverse, still))
            self._reflect(reflectors, inverse, a[at.start :, at.stop :], transposed=True)

    def apply(self, y: Float[Tensor, "m k"], *, transposed: bool = False) -> Float[Tensor, "m k"]:
        """`Q Y`, or `Qᵀ Y`."""
        y = y.clone()
        for at, inverse, still in self._blocks if transposed else reversed(self._blocks):
            reflectors = _reflectors(self.values[at.start :, at], still)
            self._reflect(reflectors, inverse, y[at.start :], transposed=transposed)
        return y

    @staticmethod
    def _reflect(reflectors: Tensor, inverse: Tensor, y: Tensor, *, transposed: bool) -> None:
        """`Y -= V T Vᵀ Y`, or with `Tᵀ`, in place."""
        if y.shape[1]:
            inner = inverse.T if transposed else inverse
            scaled = torch.linalg.solve_triangular(inner, reflectors.T @ y, upper=not transposed)
            y.addmm_(reflectors, scaled, alpha=-1)


def _reflectors(packed: Tensor, still: Tensor) -> Tensor:
    """The reflectors that LAPACK leaves below the diagonal, with their ones; zeros where there is none."""
    v = packed.tril(-1)
    v.diagonal().fill_(1.0)
    v[:, still] = 0
    return v

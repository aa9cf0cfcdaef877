"""A symmetric matrix in block-tridiagonal form: `(A + αI)⁻¹ y` and the diagonal of that inverse cost O(n²) for each α."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.linalg.grams.gram import slices
from ntkscope.linalg.spectra.band import householder

WIDTH = 64
ROWS = 1024  # of Q that stay in the processor's cache with what is made of them

Factors = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class BlockTridiagonal:
    """`A = Q B Qᵀ`, B with `diagonal` blocks D_j and `below` them the blocks R_j; `basis` is Qᵀ.

    Q (m, n) has orthonormal columns: m = n of `block_tridiagonal`, m > n where A is seen in a subspace of a larger space.
    """

    diagonal: tuple[Float64[Tensor, "w w"], ...]
    below: tuple[Float64[Tensor, "v w"], ...]
    basis: Float64[Tensor, "n m"]

    def dense(self) -> Float64[Tensor, "n n"]:
        """B as a matrix."""
        out, at = torch.block_diag(*self.diagonal), 0
        for block, under in zip(self.diagonal, self.below):
            end = at + len(block)
            out[end : end + len(under), at:end] = under
            out[at:end, end : end + len(under)] = under.T
            at = end
        return out

    def factors(self, alpha: float) -> Factors | None:
        """The Cholesky factor L of B + αI, each block of its diagonal with the one left of it; None without one; O(n w²)."""
        found: Factors = []
        for block, left in zip(self.diagonal, (self.diagonal[0][:, :0], *self.below)):
            pivot = block.clone()
            pivot.diagonal().add_(alpha)
            if found:
                left = torch.linalg.solve_triangular(found[-1][0].T, left, upper=True, left=False)
                pivot.addmm_(left, left.T, alpha=-1)
            factor, failed = torch.linalg.cholesky_ex(pivot)
            if int(failed):
                return None
            found.append((factor, left))
        return found

    def inverse(
        self, alpha: float, inside: Float64[Tensor, "n k"]
    ) -> tuple[Float64[Tensor, "m k"], Float64[Tensor, " m"]]:
        """`G Y` and the diagonal of `G = Q (B + αI)⁻¹ Qᵀ` for `inside` = Qᵀ Y and an α that makes B + αI definite; O(m n w).

        `G = W Wᵀ` with `W = Q L⁻ᵀ`. Each block of Wᵀ is `own` times that of Qᵀ less `before` times the block above it.
        """
        factors = self.factors(alpha)
        if factors is None:
            raise NumericalError(f"got alpha={alpha:.3g}; expected one that makes the matrix positive definite")
        squares = torch.zeros_like(self.basis[0])
        steps = []
        for factor, left in factors:
            own = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
            steps.append((own, own @ left))
        for rows in slices(len(squares), ROWS):
            total = torch.zeros_like(self.basis[: len(factors[0][0]), rows])
            root, at = total, 0
            for own, before in steps:
                above, root = root, own @ self.basis[at : at + len(own), rows]
                if at:
                    root.addmm_(before, above, alpha=-1)
                total[: len(own)].addcmul_(root, root)
                at += len(own)
            squares[rows] = total.sum(0)
        return (_solved(factors, inside).T @ self.basis).T, squares


def _solved(factors: Factors, columns: Float64[Tensor, "n k"]) -> Float64[Tensor, "n k"]:
    """`L⁻ᵀ L⁻¹ columns`."""
    parts = list(columns.split([len(factor) for factor, _ in factors]))
    for j, (factor, left) in enumerate(factors):
        right = parts[j] - left @ parts[j - 1] if j else parts[j]
        parts[j] = torch.linalg.solve_triangular(factor, right, upper=False)
    for j in reversed(range(len(factors))):
        right = parts[j] - factors[j + 1][1].T @ parts[j + 1] if j + 1 < len(factors) else parts[j]
        parts[j] = torch.linalg.solve_triangular(factors[j][0].T, right, upper=True)
    return torch.cat(parts)


def block_tridiagonal(matrix: Float64[Tensor, "n n"], width: int = WIDTH) -> BlockTridiagonal:
    """The form of a symmetric matrix, which is overwritten, by blocked Householder reflections; O(n³), all of it in products.

    A panel's reflections `I - V T Vᵀ` turn what is right of it into `A - V Wᵀ - W Vᵀ`. Bischof, Lang & Sun (2000). Eigenvectors
    would take twice the arithmetic, half of it at the speed of memory.

    >>> form = block_tridiagonal(torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64)), width=2)
    >>> form.inverse(1.0, torch.ones(5, 1, dtype=torch.float64))[1].mul(60).round().tolist()
    [30.0, 20.0, 15.0, 12.0, 10.0]
    """
    n = len(matrix)
    diagonal, below, reflections = [], [], []
    for start in range(0, n, width):
        end = min(start + width, n)
        block = matrix[start:end, start:end]
        diagonal.append((block + block.T) / 2)
        if end == n:
            break
        V, T, R = householder(matrix[end:, start:end])
        below.append(R)
        reflections.append((end, V, T))
        right = matrix[end:, end:]
        image = right @ (V @ T)
        W = image - V @ (T.T @ (V.T @ image)) / 2
        right.addmm_(torch.cat([V, W], 1), torch.cat([W, V], 1).T, alpha=-1)
    basis = torch.eye(n, dtype=matrix.dtype, device=matrix.device)
    for end, V, T in reversed(reflections):
        part = basis[end:, end:]
        part.addmm_(part @ V, (V @ T).T, alpha=-1)
    return BlockTridiagonal(tuple(diagonal), tuple(below), basis)

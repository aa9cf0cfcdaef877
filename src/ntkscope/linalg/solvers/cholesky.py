"""Kernel systems by Cholesky, with any jitter it needed reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.core.checked import Count, NonNegative
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.grams.operator import OperatorGram
from ntkscope.linalg.solvers import blocked
from ntkscope.linalg.solvers.blocked import BLOCK
from ntkscope.linalg.solvers.system import LAPACK, checked_system, relative_residual, symmetric_part, warn
from ntkscope.linalg.spectra.block_lanczos import block_eigenpairs
from ntkscope.linalg.spectra.lanczos import top_eigenpairs

MOST_JITTER = 1e-3  # of the mean diagonal
PASSES = 4  # of block Lanczos, which finds a smallest eigenvalue to some percent, or how it compares with rounding
SURE = 10.0  # times the rounding, above which a matrix so judged is not singular


@dataclass(frozen=True, eq=False)
class Factor:
    """`L Lᵀ = K + shift I`; `block`: the rows of a block where L is used block by block."""

    lower: Tensor
    shift: float
    block: int | None

    @cached_property
    def extreme_eigenvalues(self) -> tuple[float, float]:
        """Estimates of the smallest and largest eigenvalue of `L Lᵀ`, by Lanczos on its inverse and on itself."""
        there, back = self._operators()
        return 1 / float(top_eigenpairs(back, 1, tolerance=1e-3)[0]), float(top_eigenpairs(there, 1, tolerance=1e-3)[0])

    def singular(self) -> bool:
        """Whether the smallest eigenvalue is below the rounding of the largest; mostly told by a few steps."""
        limit = len(self.lower) * torch.finfo(self.lower.dtype).eps
        there, back = (float(block_eigenpairs(each, 1, max_passes=PASSES).values) for each in self._operators())
        if not 1 / back < SURE * limit * there:
            return False
        smallest, largest = self.extreme_eigenvalues
        return smallest < limit * largest

    def _operators(self) -> tuple[OperatorGram, OperatorGram]:
        """`L Lᵀ` and its inverse."""
        n, lower = len(self.lower), self.lower
        there, back = (
            OperatorGram((n, n), multiply, dtype=lower.dtype, device=lower.device, symmetric=True)
            for multiply in (lambda v: lower @ (lower.T @ v), lambda v: _substitute(lower, v, self.block))
        )
        return there, back


@dataclass(frozen=True, eq=False)
class CholeskySolution:
    """What `cholesky_solve` found, `solution` shaped as `Y`, and what it had to do for it.

    `jitter`: added to the diagonal beyond the requested ridge; 0 when the matrix needed none. `residual`: the largest
    `‖Y - (K + ridge I) X‖ / ‖Y‖` over the columns, of the original system, so jitter shows in it.
    """

    solution: Tensor
    jitter: float
    residual: float
    warnings: tuple[str, ...]
    _factor: Factor = field(repr=False)

    @property
    def smallest_eigenvalue(self) -> float:
        """Of `K` itself, without ridge and jitter, estimated to about `ε ‖K‖`; computed when asked for."""
        return self._factor.extreme_eigenvalues[0] - self._factor.shift


def cholesky_solve(
    K: Gram | Tensor | np.ndarray, Y: Tensor | np.ndarray, ridge: NonNegative = 0.0, *, block: Count | None = None
) -> CholeskySolution:
    """Solve `(K + ridge I) X = Y` for the symmetric part of `K` by Cholesky; O(n³).

    Float64 below N = 5,000. Above 46,340 rows, on CUDA, block by block in one copy of the matrix: 29 GB for 60,000 rows in
    float64; `block` asks for that at any size, with blocks of so many rows. Jitter is added only when the factorisation
    fails: ten times the rounding unit of the mean diagonal, then tenfold each time, up to 1e-3 of the mean
    diagonal. It is in the result and in a `NumericalWarning`, and so is a matrix that is singular to working precision.

    Examples:
        >>> cholesky_solve(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0])).solution
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    gram, targets = checked_system(K, Y)
    n = gram.shape[0]
    if block is None and n > LAPACK and gram.device.type == "cuda":
        block = BLOCK
    matrix = symmetric_part(gram, largest=LAPACK if block is None else None)
    targets = targets.to(matrix.dtype)
    scale = float(matrix.diagonal().abs().mean()) if n else 0.0
    matrix.diagonal().add_(ridge)
    factor, jitter = _factor(matrix, scale, ridge, gram, block)
    solution = _substitute(factor, targets, block)

    messages = []
    made = Factor(factor, ridge + jitter, block)
    if jitter:
        messages.append(
            f"{gram!r} is not positive definite (smallest eigenvalue about {made.extreme_eigenvalues[0] - made.shift:.3g}):"
            f" jitter {jitter:.3g} was added to its diagonal (mean {scale:.3g}) beyond ridge {ridge:.3g}"
        )
    elif n and made.singular():
        smallest, largest = made.extreme_eigenvalues
        messages.append(
            f"{gram!r} with ridge {ridge:.3g} is singular to working precision (condition number about"
            f" {largest / smallest:.2g}): no jitter was needed, but few digits of the solution can be trusted;"
            " add a ridge or use minimum_norm_solve"
        )
    residuals = relative_residual(gram, ridge, solution, targets)
    return CholeskySolution(
        solution=solution.reshape(Y.shape),
        jitter=jitter,
        residual=float(residuals.max()) if residuals.numel() else 0.0,
        warnings=warn(messages),
        _factor=made,
    )


def _factor(matrix: Tensor, scale: float, ridge: float, gram: Gram, block: int | None) -> tuple[Tensor, float]:
    """The Cholesky factor of `matrix + jitter I` with the smallest jitter of the ladder that works; in place by blocks."""
    jitter = 0.0
    while True:
        factor = _by_lapack(matrix) if block is None else _by_blocks(matrix, block)
        if factor is not None:
            return factor, jitter
        larger = max(10 * jitter, 10 * torch.finfo(matrix.dtype).eps * scale)
        if larger > MOST_JITTER * scale or larger in (0, float("inf")):
            smallest = _smallest_eigenvalue(matrix, block) - jitter - ridge
            raise NumericalError(
                f"{gram!r} is not positive definite: its smallest eigenvalue is {smallest:.3g}, ridge {ridge:.3g} and"
                f" jitter up to {MOST_JITTER * scale:.3g} do not repair that; use a larger ridge, or minimum_norm_solve"
            )
        matrix.diagonal().add_(larger - jitter)
        jitter = larger


def _by_lapack(matrix: Tensor) -> Tensor | None:
    factor, failed_at = torch.linalg.cholesky_ex(matrix)
    return None if int(failed_at) or not bool(torch.isfinite(factor).all()) else factor


def _by_blocks(matrix: Tensor, block: int) -> Tensor | None:
    """The factor in the place of the matrix; after a failure the matrix as it was."""
    diagonal = matrix.diagonal().clone()
    if blocked.cholesky(matrix, block):
        blocked.clear_upper(matrix, block)
        return matrix
    blocked.mirror(matrix, diagonal, block)
    return None


def _substitute(factor: Tensor, v: Tensor, block: int | None) -> Tensor:
    """`(L Lᵀ)⁻¹ V`."""
    if block is None:
        return torch.cholesky_solve(v, factor)
    forward = blocked.solve_triangular(factor, v, upper=False, block=block)
    return blocked.solve_triangular(factor, forward, upper=False, transposed=True, block=block)


def _smallest_eigenvalue(matrix: Tensor, block: int | None) -> float:
    """Exact where LAPACK can, else by Lanczos on `‖A‖ I - A`, to 1e-3 of the norm."""
    if block is None:
        return float(torch.linalg.eigvalsh(matrix)[0])
    norm = float(top_eigenpairs(matrix, 1, by="magnitude", tolerance=1e-3)[0].abs())
    flipped = OperatorGram(
        (len(matrix), len(matrix)),
        lambda v: norm * v - matrix @ v,
        dtype=matrix.dtype,
        device=matrix.device,
        symmetric=True,
    )
    return norm - float(top_eigenpairs(flipped, 1, tolerance=1e-3)[0])

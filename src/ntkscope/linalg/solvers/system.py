"""What every solver shares: a checked system `K X = Y`, the working precision, and warnings that are kept in the result."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import all_finite, tensor_of
from ntkscope.linalg.grams.dense import as_gram
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.solvers.blocked import symmetrise

FLOAT64_BELOW = 5000
LAPACK = 46_340  # rows: their square is counted in 32 bits
EIGENVECTORS = 32_766  # rows: LAPACK's workspace for eigenvectors has 2n² numbers, counted in 32 bits


class NumericalWarning(UserWarning):
    """A result was computed, but not exactly the requested one: jitter was added, or iterations ran out.

    Examples:
        >>> import warnings
        >>> from ntkscope.linalg import cholesky_solve
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     solved = cholesky_solve(np.ones((2, 2)), np.ones(2))
        >>> [w.category.__name__ for w in caught], solved.jitter > 0
        (['NumericalWarning'], True)
    """


def checked_system(K: Any, Y: Any) -> tuple[Gram, Tensor]:
    """The system as a symmetric Gram and right-hand sides (n, k) on its device, or an error that says what is wrong."""
    gram = as_gram(K, symmetric=True)
    return gram, right_hand_sides(Y, gram.shape, repr(gram)).to(gram.device)


def right_hand_sides(Y: Any, shape: tuple[int, ...], what: str = "") -> Tensor:
    """Finite right-hand sides of a matrix of this shape, (n, k), detached, floating point."""
    targets, n = tensor_of(Y, "right-hand sides", keep=True, empty=True), shape[0]
    if targets.ndim not in (1, 2) or targets.shape[0] != n:
        raise UsageError(
            f"got right-hand sides of shape {tuple(targets.shape)} for {what or f'a matrix of shape {tuple(shape)}'}; expected"
            f" ({n},) or ({n}, k), one row per row of the matrix"
        )
    return targets if targets.ndim == 2 else targets[:, None]


def working_dtype(gram: Gram) -> torch.dtype:
    """float64 below N = 5,000; above it the Gram's own dtype, at least float32."""
    if gram.shape[0] < FLOAT64_BELOW:
        return torch.float64
    return torch.promote_types(gram.dtype, torch.float32)


def symmetric_part(gram: Gram, dtype: torch.dtype | None = None, *, largest: int | None = LAPACK) -> Tensor:
    """`(K + Kᵀ)/2` as a fresh finite tensor, one copy of the kernel in all, in `working_dtype` unless another is asked for.

    Refused above `largest` rows, the size whose square LAPACK's 32-bit indices hold; None: what follows works block by block.
    """
    if largest is not None and gram.shape[0] > largest:
        raise UsageError(
            f"{gram!r} would be formed and decomposed by dense LAPACK, which is safe up to {largest} rows; expected a method"
            " that needs only products: conjugate_gradient (KernelRidge with solver='cg', KernelGLM), eigenpairs(k=…),"
            " eigvalsh(), spectral_density"
        )
    formed = gram.dense().detach()
    values = formed.to(working_dtype(gram) if dtype is None else dtype)
    if values.data_ptr() == formed.data_ptr():
        values = values.clone()  # the Gram may hold this one
    symmetrise(values)
    if not all_finite(values):  # or sums of two of them are not
        raise NumericalError(f"{gram!r} holds NaN or infinity; check the inputs or activations it was computed from")
    return values


def relative_residual(gram: Gram, ridge: float, solution: Tensor, targets: Tensor) -> Tensor:
    """`‖Y - (K + ridge I) X‖ / ‖Y‖` for each column; 0 where both vanish."""
    unit = column_units(targets)
    gap = torch.linalg.vector_norm((targets - (gram @ solution + ridge * solution)) / unit, dim=0)
    size = torch.linalg.vector_norm(targets / unit, dim=0)
    return torch.where(gap == 0, gap, gap / size)


def column_units(targets: Tensor) -> Tensor:
    """A power of two for each column, (1, k), about its largest entry; 1 for a column of zeros.

    >>> column_units(torch.tensor([[3.0, 0.0], [-5.0, 0.0]]))
    tensor([[4., 1.]])
    """
    if not targets.numel():
        return targets.new_ones(1, targets.shape[1])
    largest = targets.abs().amax(0, keepdim=True)
    return torch.where(largest > 0, torch.exp2(largest.log2().floor()), 1.0)


def in_units(solution: Tensor, targets: Tensor, matrix: float) -> Tensor:
    """The solution of a system whose two sides were divided by these units; refused where it leaves the range of floats."""
    restored = solution * targets if matrix == 1 else solution * (targets / matrix)
    if not all_finite(restored):
        raise NumericalError(
            f"the solution leaves the range of float64: the matrix is of size {matrix:.0e}, right-hand sides up to"
            f" {float(targets.max()):.0e}; expected sides nearer to each other: change the units"
        )
    return restored


def warn(messages: list[str]) -> tuple[str, ...]:
    """Emit each message as a `NumericalWarning` at the solver's caller, and return them to be kept in the result."""
    for message in messages:
        warnings.warn(message, NumericalWarning, stacklevel=3)
    return tuple(messages)

"""The minimum-norm solution of a kernel system, by eigendecomposition with a stated cut-off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.checked import Fraction
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.solvers.system import EIGENVECTORS, checked_system, relative_residual, symmetric_part, warn


@dataclass(frozen=True, eq=False)
class MinimumNormSolution:
    """What `minimum_norm_solve` found, `solution` shaped as `Y`, and the `cutoff` that decided it.

    `rank`: eigenvalues kept, those of magnitude above the cut-off, which is relative to the largest. `eigenvalues`: all of
    them, ascending. `residual`: the largest `‖Y - K X‖ / ‖Y‖` over the columns, the part of the targets outside the kept
    eigenspace.
    """

    solution: Tensor
    rank: int
    cutoff: float
    eigenvalues: Tensor
    smallest_eigenvalue: float
    residual: float
    warnings: tuple[str, ...]


def default_cutoff(gram: Gram) -> float:
    """`n ε`, ε the rounding unit of the dtype of the kernel's entries."""
    return gram.shape[0] * torch.finfo(gram.dtype).eps


def minimum_norm_solve(
    K: Gram | Tensor | np.ndarray, Y: Tensor | np.ndarray, cutoff: Fraction | None = None
) -> MinimumNormSolution:
    """`X = K⁺ Y`: of all X that minimise `‖K X - Y‖` the one of smallest norm; O(n³).

    `K⁺ = Σ_{|λ_i| > cutoff·max|λ|} u_i u_iᵀ / λ_i` over the eigenpairs of the symmetric part. The cut-off often decides
    the answer, so it is in the result; the default is `n ε` with ε of the dtype of the entries. Float64 below
    N = 5,000. A matrix with negative eigenvalues beyond the cut-off is not a kernel: a `NumericalWarning` says so.

    Examples:
        >>> found = minimum_norm_solve(torch.ones(2, 2), torch.tensor([1.0, 1.0]))
        >>> found.solution, found.rank
        (tensor([0.5000, 0.5000], dtype=torch.float64), 1)
    """
    gram, targets = checked_system(K, Y)
    cutoff = default_cutoff(gram) if cutoff is None else float(cutoff)
    values, vectors = torch.linalg.eigh(symmetric_part(gram, largest=EIGENVECTORS))
    targets = targets.to(values.dtype)
    largest = float(values.abs().max()) if len(values) else 0.0
    kept = values.abs() > cutoff * largest
    basis = vectors[:, kept]
    solution = basis @ ((basis.T @ targets) / values[kept, None])

    messages = []
    negative = int((values[kept] < 0).sum())
    if negative:
        messages.append(
            f"{gram!r} has {negative} negative eigenvalues beyond the cut-off {cutoff:.2g} (smallest"
            f" {float(values[0]):.3g}, largest {largest:.3g}): it is not positive semi-definite; the pseudo-inverse"
            " kept them; raise the cut-off to drop them"
        )
    residuals = relative_residual(gram, 0.0, solution, targets)
    return MinimumNormSolution(
        solution=solution.reshape(Y.shape),
        rank=int(kept.sum()),
        cutoff=cutoff,
        eigenvalues=values,
        smallest_eigenvalue=float(values[0]) if len(values) else 0.0,
        residual=float(residuals.max()) if residuals.numel() else 0.0,
        warnings=warn(messages),
    )

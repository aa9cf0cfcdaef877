"""Kernel systems by preconditioned conjugate gradients: the kernel is used only through `K @ v`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.core.checked import Count, NonNegative, Tolerance
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.solvers.preconditioner import Preconditioner
from ntkscope.linalg.solvers.system import checked_system, column_units, warn


@dataclass(frozen=True, eq=False)
class ConjugateGradientSolution:
    """What `conjugate_gradient` found, `solution` shaped as `Y`, and how far it got.

    `passes`: products `K @ V`, one for each of the `iterations` and one for every time the residual was recomputed.
    `relative_residual`: `‖Y - (K + ridge I) X‖ / ‖Y‖` of each column, recomputed at the end; `converged`: all reached `rtol`.
    """

    solution: Tensor
    iterations: int
    passes: int
    relative_residual: Tensor
    converged: bool
    warnings: tuple[str, ...]


def conjugate_gradient(
    K: Gram | Tensor | np.ndarray,
    Y: Tensor | np.ndarray,
    ridge: NonNegative = 0.0,
    preconditioner: Preconditioner | None = None,
    rtol: Tolerance = 1e-8,
    max_iter: Count = 1000,
    *,
    dtype: torch.dtype = torch.float64,
    callback: Callable[[int, float], None] | None = None,
) -> ConjugateGradientSolution:
    """Solve `(K + ridge I) X = Y` for positive semi-definite `K` to `‖residual‖ ≤ rtol ‖Y‖` in every column.

    All columns share each product `K @ V`, and leave it as they converge; one product per iteration, about
    `sqrt(condition number) log(2/rtol) / 2` iterations. The residual is recomputed before anything is called
    converged, and the recurrence restarted where rounding had made it drift. Running out of iterations or of digits
    is a `NumericalWarning` and `converged=False`; in each column the X of the smallest residual that was computed comes back,
    and `relative_residual` is its own. `callback(iteration, worst relative
    residual)` follows it. Hestenes & Stiefel (1952).

    Examples:
        >>> found = conjugate_gradient(torch.diag(torch.tensor([1.0, 2.0, 4.0])), torch.ones(3))
        >>> found.solution, found.iterations, found.converged
        (tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64), 3, True)
    """
    gram, targets = checked_system(K, Y)
    targets = targets.to(dtype)
    unit = column_units(targets)
    targets = targets / unit  # columns of any size: their squares neither vanish nor overflow
    size = torch.linalg.vector_norm(targets, dim=0)
    goal = rtol * size
    solution = torch.zeros_like(targets)
    residual, iterations, passes, previous = targets, 0, 0, float("inf")
    best, least = solution, size
    while iterations < max_iter:

        def follow(steps: int, excess: float, before: int = iterations) -> None:
            if callback is not None:
                callback(before + steps, rtol * excess)

        correction, steps = _descend(gram, ridge, residual, goal, preconditioner, max_iter - iterations, follow)
        solution, iterations, passes = solution + correction, iterations + steps, passes + steps + 1
        residual = targets - (gram @ solution + ridge * solution)
        if not bool(torch.isfinite(residual).all()):
            raise NumericalError(f"{gram!r} @ v gave NaN or infinity; check the inputs of the kernel")
        gap = torch.linalg.vector_norm(residual, dim=0)
        best, least = torch.where(gap < least, solution, best), torch.minimum(gap, least)
        excess = float((gap / goal).nan_to_num(0.0).amax()) if len(goal) else 0.0
        if excess <= 1 or excess > previous / 2 or steps == 0:
            break
        previous = excess

    residuals = torch.where(least == 0, least, least / size)
    missed = int((residuals > rtol).sum())
    messages = []
    if missed:
        messages.append(
            f"conjugate gradients on {gram!r}: {missed} of {len(residuals)} columns did not reach rtol {rtol:.1g} in"
            f" {iterations} of at most {max_iter} iterations (worst relative residual {float(residuals.max()):.2g});"
            " use a preconditioner (nystrom), a larger ridge, more iterations or a larger rtol"
        )
    return ConjugateGradientSolution(
        solution=(best * unit).reshape(Y.shape),
        iterations=iterations,
        passes=passes,
        relative_residual=residuals,
        converged=not missed,
        warnings=warn(messages),
    )


def _descend(
    gram: Gram,
    ridge: float,
    residual: Tensor,
    goal: Tensor,
    preconditioner: Preconditioner | None,
    max_iter: int,
    follow: Callable[[int, float], None],
) -> tuple[Tensor, int]:
    """One run of the recurrence from zero; columns stop at their goal, or where a direction has no curvature left."""

    def preconditioned(r: Tensor) -> Tensor:
        return r if preconditioner is None else preconditioner(r).to(r.dtype)

    solution = torch.zeros_like(residual)
    active = (torch.linalg.vector_norm(residual, dim=0) > goal).nonzero().flatten()
    r = residual[:, active]
    p = z = preconditioned(r)
    rz = (r * z).sum(0)
    rounding = 1e3 * max(torch.finfo(r.dtype).eps, torch.finfo(gram.dtype).eps)
    norm, steps = 0.0, 0
    while len(active) and steps < max_iter:
        product = gram @ p + ridge * p
        curvature = (p * product).sum(0)
        length = torch.linalg.vector_norm(p, dim=0)
        norm = max(norm, float((torch.linalg.vector_norm(product, dim=0) / length).amax()))
        if bool((curvature < -rounding * norm * length.square()).any()):
            raise NumericalError(
                f"conjugate gradients met a direction of negative curvature in {gram!r} + {ridge:.3g} I: it is not"
                " positive semi-definite; use a larger ridge, or minimum_norm_solve"
            )
        steps += 1
        alpha = torch.where(curvature > 0, rz / curvature, torch.zeros_like(rz))
        solution[:, active] += alpha * p
        r = r - alpha * product
        z = preconditioned(r)
        rz, last = (r * z).sum(0), rz
        size = torch.linalg.vector_norm(r, dim=0)
        follow(steps, float((size / goal[active]).amax()))
        going = (size > goal[active]) & (curvature > 0) & (rz > 0)
        p = z + (rz / last) * p
        active, r, p, rz = active[going], r[:, going], p[:, going], rz[going]
    return solution, steps

"""L-BFGS on the same objective, in coordinates where the leading directions of the kernel are no longer stiff."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ntkscope.surrogates.solvers.leading import Leading
from ntkscope.surrogates.solvers.newton import Optimum, Problem


def lbfgs(problem: Problem, start: Tensor, leading: Leading, goal: float, tol: float, max_iter: int) -> Optimum:
    """Minimise to `‖∇F‖ ≤ goal` and `F ≤ (1 + tol) min F` by SciPy's L-BFGS-B; two products per evaluation.

    The variables are `S⁻¹ W` with `S = U diag((λ²d + α)^-½) Uᵀ + α^-½ (I - U Uᵀ)`: where the curvature of the loss is
    d for all rows, S S is the inverse Hessian. Liu & Nocedal (1989).
    """
    n = len(problem.loss.targets)
    diagonal, _ = problem.loss.curvature(torch.zeros_like(problem.loss.targets))
    level = float(diagonal.mean())
    outside = problem.alpha**-0.5
    inside = (leading.values.square() * level + problem.alpha).rsqrt() - outside
    vectors = leading.vectors
    bias_scale = (n * level) ** -0.5

    def scaled(v: Tensor) -> Tensor:  # symmetric
        weights = v[:-1]
        return torch.cat([outside * weights + vectors @ (inside[:, None] * (vectors.T @ weights)), bias_scale * v[-1:]])

    evaluations = 0
    best: tuple[float, Tensor] = (float("inf"), start)

    def there(value: float, size: float, gap: float) -> bool:
        return size <= goal and gap <= tol * value / (1 + tol)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal evaluations, best
        theta = start + scaled(torch.from_numpy(flat).to(start.device).reshape(start.shape))
        scores = problem.scores(theta)
        value, gradient = problem.value(theta, scores), problem.gradient(theta, scores)
        evaluations += 1
        size, gap = float(gradient.norm()), float(gradient[:-1].square().sum()) / (2 * problem.alpha)
        if gap < best[0]:
            best = (gap, theta)
        if there(value, size, gap) and there(value, size, problem.gap(gradient, scores)):  # the bias costs more
            best = (0.0, theta)
            raise StopIteration
        return value, scaled(gradient).flatten().cpu().numpy()

    iterations = 0

    def count(_: np.ndarray) -> None:
        nonlocal iterations
        iterations += 1

    with suppress(StopIteration):
        minimize(
            objective,
            np.zeros(start.numel()),
            jac=True,
            method="L-BFGS-B",
            callback=count,
            options={"maxiter": 10 * max_iter, "maxfun": 20 * max_iter, "maxcor": 20, "gtol": 0.0, "ftol": 0.0},
        )
    theta, scores = problem.rebiased(best[1], problem.scores(best[1]))
    value, gradient = problem.value(theta, scores), problem.gradient(theta, scores)
    size, gap = float(gradient.norm()), problem.gap(gradient, scores)
    return Optimum(theta, scores, value, size, gap, iterations, 2 * evaluations + 2, there(value, size, gap))

"""L-BFGS on the same objective, in coordinates where the leading directions of the kernel are no longer stiff."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ntkscope.surrogates._leading import Leading
from ntkscope.surrogates._newton import Optimum, Problem


def lbfgs(problem: Problem, start: Tensor, leading: Leading, goal: float, max_iter: int) -> Optimum:
    """Minimise to `‖∇F‖ ≤ goal` by SciPy's L-BFGS-B; two products an evaluation.

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

    evaluations, last = 0, start
    best: tuple[float, Tensor] = (float("inf"), start)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal evaluations, last, best
        theta = start + scaled(torch.from_numpy(flat).to(start.device).reshape(start.shape))
        scores = problem.scores(theta)
        gradient = problem.gradient(theta, scores)
        evaluations, last = evaluations + 1, theta
        size = float(gradient.norm())
        if size < best[0]:
            best = (size, theta)
        if size <= goal:
            raise StopIteration
        return problem.value(theta, scores), scaled(gradient).flatten().cpu().numpy()

    iterations = 0

    def count(_: np.ndarray) -> None:
        nonlocal iterations
        iterations += 1

    try:
        minimize(
            objective,
            np.zeros(start.numel()),
            jac=True,
            method="L-BFGS-B",
            callback=count,
            options={"maxiter": 10 * max_iter, "maxfun": 20 * max_iter, "maxcor": 20, "gtol": 0.0, "ftol": 0.0},
        )
    except StopIteration:
        best = (min(best[0], goal), last)
    size, theta = best
    scores = problem.scores(theta)
    size = float(problem.gradient(theta, scores).norm())
    return Optimum(theta, scores, problem.value(theta, scores), size, iterations, 2 * evaluations + 2, size <= goal)

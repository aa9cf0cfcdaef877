"""Newton's method with inner conjugate gradients for a ridge-penalised loss of linear scores.

    F(W, b) = loss(Φ W + b) + α/2 ‖W‖²

Nothing but `Φ V` and `Φᵀ R` is asked of the features Φ (n, d); parameters are one tensor (d + 1, c), the bias last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.surrogates._losses import Loss

Apply: TypeAlias = Callable[[Tensor], Tensor]
Precondition: TypeAlias = Callable[[Tensor], Apply]
"""From the scores (n, c) to an approximate inverse Hessian."""

INNER = 200  # conjugate-gradient steps a Newton step
HALVINGS = 40
ARMIJO = 1e-4


@dataclass(frozen=True, eq=False)
class Problem:
    """The objective: how scores come from parameters, the loss of the scores, and the ridge strength."""

    forward: Apply
    """(d, c) → (n, c): `Φ V`."""
    adjoint: Apply
    """(n, c) → (d, c): `Φᵀ R`."""
    loss: Loss
    alpha: float
    bias: bool = True
    quick: Apply | None = None
    """Where Φ is symmetric: `Φ V` in lower precision, good enough for the directions Newton's method goes."""

    def scores(self, theta: Tensor) -> Tensor:
        return self.forward(theta[:-1]) + theta[-1]

    def pulled(self, r: Tensor) -> Tensor:
        """The transpose of `scores`."""
        return self._with_bias(self.adjoint(r), r)

    def bent(self, p: Tensor, curve: Apply) -> tuple[Tensor, Tensor]:
        """The Hessian times p, and the change of scores along p."""
        forward, adjoint = (self.quick, self.quick) if self.quick else (self.forward, self.adjoint)
        ahead = forward(p[:-1]) + p[-1]
        r = curve(ahead)
        return self._with_bias(adjoint(r), r) + self.penalty_gradient(p), ahead

    def _with_bias(self, pulled: Tensor, r: Tensor) -> Tensor:
        total = r.sum(0, keepdim=True)
        return torch.cat([pulled, total if self.bias else torch.zeros_like(total)])

    def penalty_gradient(self, theta: Tensor) -> Tensor:
        out = self.alpha * theta
        out[-1] = 0
        return out

    def value(self, theta: Tensor, scores: Tensor) -> float:
        return float(self.loss.value(scores) + self.alpha / 2 * theta[:-1].square().sum())

    def gradient(self, theta: Tensor, scores: Tensor) -> Tensor:
        return self.pulled(self.loss.residual(scores)) + self.penalty_gradient(theta)


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where Newton's method stopped."""

    theta: Float[Tensor, "p c"]
    scores: Float[Tensor, "n c"]
    value: float
    gradient_norm: float
    iterations: int
    products: int
    """Applications of Φ or Φᵀ to (·, c) blocks."""
    converged: bool


def newton(problem: Problem, start: Tensor, precondition: Precondition, goal: float, max_iter: int) -> Optimum:
    """Minimise to `‖∇F‖ ≤ goal`; each step solves the Newton system by preconditioned conjugate gradients.

    Two products a conjugate-gradient step; the line search costs none, since scores are linear in the parameters. The
    inner tolerance shrinks with the gradient, which makes the steps superlinear. Nocedal & Wright (2006), chapter 7.
    """
    theta, scores = start, problem.scores(start)
    value, gradient = problem.value(theta, scores), problem.gradient(theta, scores)
    size = float(gradient.norm())
    first, products, done = max(size, goal), 2, 0
    while size > goal and done < max_iter:
        done += 1
        _, curve = problem.loss.curvature(scores)
        forcing = min(0.1, (size / first) ** 0.5, max(0.3 * goal / size, 1e-3))
        step, moved, used = _newton_step(problem, gradient, curve, precondition(scores), forcing)
        products += used + 1
        length, value_new = _line_search(problem, theta, scores, step, moved, gradient, value)
        if length == 0.0:
            break
        theta, scores, value = theta + length * step, scores + length * moved, value_new
        if problem.quick is not None or done % 5 == 0:  # a running sum is only as good as the rounding of its terms
            scores, products = problem.scores(theta), products + 1
            value = problem.value(theta, scores)
        gradient = problem.gradient(theta, scores)
        size = float(gradient.norm())
    return Optimum(theta, scores, value, size, done, products, size <= goal)


def _newton_step(
    problem: Problem, gradient: Tensor, curve: Apply, approximate_inverse: Apply, forcing: float
) -> tuple[Tensor, Tensor, int]:
    """`-H⁻¹ g` approximately, with the change of the scores it makes; and the products spent."""
    step = torch.zeros_like(gradient)
    moved: Tensor | float = 0.0
    r = -gradient
    p = z = approximate_inverse(r)
    rz = float((r * z).sum())
    goal, used = forcing**2 * rz, 0
    for _ in range(INNER):
        product, ahead = problem.bent(p, curve)
        used += 2
        bend = float((p * product).sum())
        if not bend > 0:
            break
        length = rz / bend
        step, moved, r = step + length * p, moved + length * ahead, r - length * product
        z = approximate_inverse(r)
        rz, last = float((r * z).sum()), rz
        if not rz > goal:
            break
        p = z + (rz / last) * p
    if isinstance(moved, float):  # no curvature along the gradient: go downhill as far as the search allows
        return p, problem.scores(p), used + 1
    return step, moved, used


def _line_search(
    problem: Problem, theta: Tensor, scores: Tensor, step: Tensor, moved: Tensor, gradient: Tensor, value: float
) -> tuple[float, float]:
    """Backtracking by halves; near the optimum, where rounding hides the decrease, the full step."""
    slope = float((gradient * step).sum())
    noise = 1e-13 * max(abs(value), 1e-300)
    length = 1.0
    for _ in range(HALVINGS):
        reached = problem.value(theta + length * step, scores + length * moved)
        if reached <= value + ARMIJO * length * slope + noise:
            return length, reached
        length /= 2
    return 0.0, value

"""Newton's method with inner conjugate gradients for a ridge-penalised loss of linear scores.

    F(W, b) = loss(Φ W + b) + α/2 ‖W‖²

Only `Φ V` and `Φᵀ R` of the features Φ (n, d) are needed; parameters are one tensor (d + 1, c), the bias last.

The distance from the optimum is known: with the best bias for these W, `u = ∇loss` is a point of the dual
problem, and the duality gap between the two is `‖∇_W F‖² / 2α`. F lies above its optimum by no more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.surrogates.solvers.losses import Loss, Softmax

Apply: TypeAlias = Callable[[Tensor], Tensor]
Precondition: TypeAlias = Callable[[Tensor], Apply]
"""From the scores (n, c) to an approximate inverse Hessian."""

INNER = 200  # conjugate-gradient steps per Newton step
HALVINGS = 40
BIAS_STEPS = 60
RISE = 1e-9  # relative rise of the objective that is tolerated where it should fall
IDLE = 5  # consecutive conjugate-gradient steps without gain: they only follow rounding
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
    """Where Φ is symmetric: `Φ V` in lower precision, accurate enough for Newton directions."""

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

    def gap(self, gradient: Tensor, scores: Tensor) -> float:
        """A bound of `F - min F`: the duality gap of W, and twice what a Newton step of the bias would still gain."""
        weights = float(gradient[:-1].square().sum()) / (2 * self.alpha)
        if not self.bias:
            return weights
        slope = gradient[-1]
        return weights + float(
            (slope * (torch.linalg.pinv(self._bias_curvature(scores), hermitian=True) @ slope)).sum()
        )

    def rebiased(self, theta: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The same W with its best bias, by damped Newton steps in c unknowns; no product with Φ."""
        if not self.bias:
            return theta, scores
        shift, moved = torch.zeros_like(theta[-1]), scores
        value = float(self.loss.value(moved))
        for _ in range(BIAS_STEPS):
            slope = self.loss.residual(moved).sum(0)
            step = -(torch.linalg.pinv(self._bias_curvature(moved), hermitian=True) @ slope)
            if not float(-(slope * step).sum()) > 1e-14 * value:
                break
            size = float(step.abs().max())
            step = step if size <= 1 else step / size  # curvature is e times another within a unit
            reached = float(self.loss.value(moved + step))
            if not reached < value:
                break
            shift, moved, value = shift + step, moved + step, reached
        return torch.cat([theta[:-1], theta[-1:] + shift]), moved

    def centred(self, v: Tensor) -> Tensor:
        """Without the part shared by all classes, which softmax ignores and rounding would inflate."""
        return v - v.mean(1, keepdim=True) if isinstance(self.loss, Softmax) else v

    def _bias_curvature(self, scores: Tensor) -> Tensor:
        return self.loss.blocks(scores).sum(0)


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where Newton's method stopped."""

    theta: Float[Tensor, "p c"]
    scores: Float[Tensor, "n c"]
    value: float
    gradient_norm: float
    gap: float
    """Upper bound of `value` minus the minimum."""
    iterations: int
    products: int
    """Applications of Φ or Φᵀ to (·, c) blocks."""
    converged: bool


def newton(
    problem: Problem, start: Tensor, precondition: Precondition, goal: float, tol: float, max_iter: int
) -> Optimum:
    """Minimise to `‖∇F‖ ≤ goal` and `F ≤ (1 + tol) min F`; each step solves the Newton system by conjugate gradients.

    Two products per conjugate-gradient step; the line search costs none, since scores are linear in the parameters. The
    inner tolerance shrinks with the gradient, which makes the steps superlinear. Convergence is tested on freshly
    computed scores, not on their running sum. Nocedal & Wright (2006), chapter 7.
    """
    theta, scores = problem.rebiased(start, problem.scores(start))
    value, gradient = problem.value(theta, scores), problem.gradient(theta, scores)
    size, gap, fresh = float(gradient.norm()), problem.gap(gradient, scores), True
    first, products, done, best = max(size, min(goal, size)), 2, 0, (value, theta, scores)
    while done < max_iter or not fresh:
        there = size <= goal and gap <= tol * value / (1 + tol)
        if there and fresh:
            break
        if not there and done < max_iter:
            done += 1
            _, curve = problem.loss.curvature(scores)
            short = min(goal, (2 * problem.alpha * tol * value) ** 0.5) / size
            forcing = min(0.1, (size / first) ** 0.5, max(0.3 * short, 1e-3))
            step, moved, used = _newton_step(problem, gradient, curve, precondition(scores), forcing)
            products += used + 1
            length, value_new = _line_search(problem, theta, scores, step, moved, gradient, value)
            if length == 0.0:
                break
            theta, scores, value = theta + length * step, scores + length * moved, value_new
            fresh = problem.quick is not None or done % 5 == 0 or done == max_iter
        else:
            fresh, products = True, products + 1
        if fresh:  # a running sum is only as good as the rounding of its terms
            scores, products = problem.scores(theta), products + 1
        theta, scores = problem.rebiased(theta, scores)
        value = problem.value(theta, scores)
        if fresh and value > best[0] * (1 + RISE):  # the steps exceed the accuracy of the summed scores
            value, theta, scores, done = *best, max_iter
        elif fresh:
            best = value, theta, scores
        gradient = problem.gradient(theta, scores)
        size, gap = float(gradient.norm()), problem.gap(gradient, scores)
    there = size <= goal and gap <= tol * value / (1 + tol)
    return Optimum(theta, scores, value, size, gap, done, products, there and fresh)


def _newton_step(
    problem: Problem, gradient: Tensor, curve: Apply, approximate_inverse: Apply, forcing: float
) -> tuple[Tensor, Tensor, int]:
    """`-H⁻¹ g` approximately, with the resulting change of the scores, and the number of products used."""
    step = torch.zeros_like(gradient)
    moved: Tensor | float = 0.0
    centred = problem.centred
    r = centred(-gradient)
    p = z = centred(approximate_inverse(r))
    rz = float((r * z).sum())
    goal, used, gained, idle = forcing**2 * rz, 0, 0.0, 0
    for _ in range(INNER):
        product, ahead = problem.bent(p, curve)
        used += 2
        bend = float((p * product).sum())
        if not bend > 0:
            break
        length = rz / bend
        gained += length * rz
        idle = idle + 1 if length * rz < 1e-2 * forcing**2 * gained else 0
        step, moved, r = step + length * p, moved + length * ahead, r - length * product
        z = centred(approximate_inverse(r))
        rz, last = float((r * z).sum()), rz
        if not rz > goal or idle == IDLE:
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

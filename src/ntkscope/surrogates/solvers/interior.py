"""Support vector machines by a primal-dual interior-point method, which losses with kinks need and any C allows.

The dual point is `u = Σ_a s_a p_a` over arms a of each point, upwards (s = 1) and downwards (s = -1), `0 ≤ p_a ≤ h_a`. With
`g_a = s_a ((K u)_i + b - y_i) + ε + yield_i p_a` the central path is `g = z - w`, `z p = w (h - p) = μ`, and a Newton step on
it is one system `K + diag(give)` over all points, with a predictor and a corrector from the same factor (Mehrotra 1992; for
support vector machines Ferris & Munson 2002). Squared losses have no h, so w is 0. The number of steps hardly depends on C
or on the number of points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.surrogates.solvers.margin_newton import Kernel, Machine, balanced_solution, better, constant, settled
from ntkscope.surrogates.solvers.margins import Margins

SHORT = 0.995  # of the way to the nearest bound
EXTRA = 6  # steps within the tolerance, to tell support vectors from others
STALLED = 8  # steps without a smaller gap or much smaller products
SLOW = 0.9


@dataclass(frozen=True, eq=False)
class _Point:
    """Lengths p, with the multipliers z of `p ≥ 0` and w of `p ≤ h`, (arms, n), and the intercept."""

    p: Float[Tensor, "a n"]
    z: Float[Tensor, "a n"]
    w: Float[Tensor, "a n"]
    b: float


class _Arms:
    """The bounds h (arms, n) of upward and downward arms; of classes each point has one arm, of targets two."""

    def __init__(self, margins: Margins) -> None:
        self.margins, self.capped = margins, not margins.squared
        self.signs = torch.tensor([[1.0], [-1.0]]).to(margins.high)
        self.bound = torch.stack([margins.high, -margins.low])
        if bool(((margins.high == 0) | (margins.low == 0)).all()):
            self.signs = torch.where(margins.high > 0, 1.0, -1.0).to(margins.high)[None]
            self.bound = self.bound.sum(0, keepdim=True)

    def dual(self, p: Tensor) -> Float[Tensor, " n"]:
        return (self.signs * p).sum(0)

    def room(self, p: Tensor) -> Float[Tensor, "a n"]:
        """`h - p`; 1 where there is no h."""
        return self.bound - p if self.capped else torch.ones_like(p)

    def slopes(self, p: Tensor, image: Tensor, b: float) -> Float[Tensor, "a n"]:
        """g"""
        return self.signs * (image + b - self.margins.targets) + self.margins.epsilon + self.margins.yields * p

    def start(self, kernel: Kernel) -> _Point:
        """Half-way between the bounds, where `g = z - w` and products differ by a small factor, however large C is."""
        size = float(self.margins.targets.square().mean().sqrt()) or 1.0
        p = self.bound / 2 if self.capped else size / self.margins.yields.expand_as(self.bound)
        g = self.slopes(p, kernel.product(self.dual(p)), 0.0)
        level = float(g.abs().mean()) or 1.0
        return _Point(p, g.clamp_min(0) + level, ((-g).clamp_min(0) + level) * self.capped, 0.0)

    def mu(self, at: _Point) -> float:
        """The mean of the products that the path brings to 0."""
        return float((at.z * at.p + at.w * self.room(at.p)).mean()) / (1 + self.capped)


def fit_interior(margins: Margins, kernel: Kernel, tol: float, max_iter: int) -> Machine:
    """Minimise in the units of the kernel until the duality gap is within `tol` of the objective; one product a step."""
    arms = _Arms(margins)
    everyone = torch.arange(len(margins.targets), device=margins.targets.device)
    point, steps, since, extra, least = arms.start(kernel), 0, 0, 0, math.inf
    best = constant(margins)
    while True:
        u = arms.dual(point.p)
        image = kernel.product(u)
        last, best = best, better(best, margins, u, image, point.b)
        mu = arms.mu(point)
        falls = mu < SLOW * least and mu * point.p.numel() > 1e-3 * tol * best.value
        since = 0 if best is not last or falls else since + 1
        least = min(mu, least)
        done = best.gap <= tol or steps >= max_iter or since >= STALLED
        if done:
            sharp = _sharpened(arms, kernel, point)
            last, best = best, better(best, margins, sharp, kernel.product(sharp), point.b, within=tol)
            if best is not last or best.gap > tol or steps >= max_iter or extra >= EXTRA:
                break
            extra += 1
        if mu == 0:
            break
        steps += 1
        ahead = _step(arms, kernel, everyone, point, image)
        if not all(bool(torch.isfinite(v).all()) for v in (ahead.p, ahead.z, ahead.w)):
            break
        point = ahead
    return replace(best, steps=steps)


def _step(arms: _Arms, kernel: Kernel, everyone: Tensor, at: _Point, image: Tensor) -> _Point:
    """One predictor and corrector."""
    p, z, w, room = at.p, at.z, at.w, arms.room(at.p)
    theta = z / p + w / room + arms.margins.yields
    spread = (1 / theta).sum(0)
    solve = kernel.solver(everyone, 1 / spread)
    off = arms.slopes(p, image, at.b) - z + w
    missing, mu = -float(arms.dual(p).sum()), arms.mu(at)

    def move(to_z: Tensor, to_w: Tensor) -> _Point:
        """The step that makes `z p` and `w (h - p)` change by these, to first order."""
        to_w = to_w * arms.capped
        wanted = to_z / p - to_w / room - off
        right = (arms.signs * wanted / theta).sum(0) / spread
        du, db = balanced_solution(solve, right[:, None], missing, bias=arms.margins.bias)
        scores = right - du / spread  # K du + db
        dp = (wanted - arms.signs * scores) / theta
        return _Point(dp, (to_z - z * dp) / p, (to_w + w * dp) / room, db)

    ahead = move(-z * p, -w * room)
    after = arms.mu(_moved(at, ahead, min(1.0, _reach(arms, at, ahead))))
    goal = mu * min(1.0, max(after / mu, 0.0)) ** 3
    ahead = move(goal - z * p - ahead.z * ahead.p, goal - w * room + ahead.w * ahead.p)
    return _moved(at, ahead, min(1.0, SHORT * _reach(arms, at, ahead)))


def _moved(at: _Point, ahead: _Point, length: float) -> _Point:
    p, z, w = (now + length * change for now, change in ((at.p, ahead.p), (at.z, ahead.z), (at.w, ahead.w)))
    return _Point(p, z, w, at.b + length * ahead.b)


def _reach(arms: _Arms, at: _Point, ahead: _Point) -> float:
    """How far a step can go until a length or a multiplier is 0."""
    pairs = [(at.p, ahead.p), (at.z, ahead.z)]
    if arms.capped:
        pairs += [(arms.room(at.p), -ahead.p), (at.w, ahead.w)]
    falling = [torch.where(change < 0, -value / change, math.inf) for value, change in pairs]
    return min(float(lengths.min()) for lengths in falling)


def _sharpened(arms: _Arms, kernel: Kernel, at: _Point) -> Tensor:
    """The dual point with lengths near a bound put there, so that only support vectors have coefficients, and the others
    moved to where their slopes are 0."""
    if arms.capped:
        share = at.p / arms.bound
        p = torch.where(share < at.z, 0.0, torch.where(1 - share < at.w, arms.bound, at.p))
    else:
        p = torch.where(at.p * arms.margins.yields < at.z, 0.0, at.p)
    free = ((p > 0) & (p < arms.bound)).any(0).nonzero()[:, 0]
    return settled(arms.margins, arms.dual(p), at.b, free, kernel)

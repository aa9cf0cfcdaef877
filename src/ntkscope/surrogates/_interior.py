"""Support vector machines with losses that have kinks, by a primal-dual interior-point method.

The dual point is `u = Σ_a s_a p_a` over arms a of each point, upwards (s = 1) and downwards (s = -1), `0 ≤ p_a ≤ h_a`. With
`g_a = s_a ((K u)_i + b - y_i) + ε` the central path is `g = z - w`, `z p = w (h - p) = μ`, and a Newton step on it is one
system `K + diag(give)` over all points, with a predictor and a corrector from the same factor (Mehrotra 1992; for support
vector machines Ferris & Munson 2002). The number of steps hardly depends on C or on the number of points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.surrogates._margin_newton import Kernel, Machine, balanced_solution, better, settled
from ntkscope.surrogates._margins import Margins

SHORT = 0.995  # of the way to the nearest bound
EXTRA = 6  # steps within the tolerance, to tell support vectors from others
STALLED = 8  # steps without a smaller gap


@dataclass(frozen=True, eq=False)
class _Point:
    """Lengths p, with the multipliers z of `p ≥ 0` and w of `p ≤ h`, (arms, n), and the intercept."""

    p: Float[Tensor, "a n"]
    z: Float[Tensor, "a n"]
    w: Float[Tensor, "a n"]
    b: float


class _Arms:
    """The bounds h (arms, n) of upward and downward arms; arms that no point has are left out, others of length 0 masked."""

    def __init__(self, margins: Margins) -> None:
        self.margins = margins
        one_sided = bool(((margins.high == 0) | (margins.low == 0)).all())
        self.signs = torch.tensor([[1.0], [-1.0]]).to(margins.high)
        self.bound = torch.stack([margins.high, -margins.low])
        if one_sided:  # of classes: each point has one arm
            self.signs = torch.where(margins.high > 0, 1.0, -1.0).to(margins.high)[None]
            self.bound = self.bound.sum(0, keepdim=True)

    def dual(self, p: Tensor) -> Float[Tensor, " n"]:
        return (self.signs * p).sum(0)

    def slopes(self, image: Tensor, b: float) -> Float[Tensor, "a n"]:
        """g"""
        return self.signs * (image + b - self.margins.targets) + self.margins.epsilon

    def start(self) -> _Point:
        size = 0.1 * float(self.margins.targets.square().mean().sqrt()) or 1.0
        p = (self.bound / 2).clamp_max(size)
        mu = size * (1 + float(self.margins.targets.abs().mean()))
        return _Point(p, mu / p, mu / (self.bound - p), 0.0)


def fit_kinked(margins: Margins, kernel: Kernel, tol: float, max_iter: int) -> Machine:
    """Minimise in the units of the kernel until the duality gap is within `tol` of the objective; one product a step."""
    arms = _Arms(margins)
    everyone = torch.arange(len(margins.targets), device=margins.targets.device)
    point, steps, since, extra = arms.start(), 0, 0, 0
    best = Machine(torch.zeros_like(margins.targets), 0.0, math.inf, math.inf, 0)
    while True:
        u = arms.dual(point.p)
        image = kernel.product(u)
        last, best = best, better(best, margins, u, image, point.b)
        since = 0 if best is not last else since + 1
        done = best.gap <= tol or steps >= max_iter or since >= STALLED
        if done:
            sharp = _sharpened(arms, kernel, point)
            last, best = best, better(best, margins, sharp, kernel.product(sharp), point.b, within=tol)
            if best is not last or best.gap > tol or steps >= max_iter or extra >= EXTRA:
                break
            extra += 1
        steps += 1
        ahead = _step(arms, kernel, everyone, point, image)
        if not all(bool(torch.isfinite(v).all()) for v in (ahead.p, ahead.z, ahead.w)):
            break
        point = ahead
    return replace(best, steps=steps)


def _step(arms: _Arms, kernel: Kernel, everyone: Tensor, at: _Point, image: Tensor) -> _Point:
    """One predictor and corrector."""
    p, z, w, room = at.p, at.z, at.w, arms.bound - at.p
    theta = z / p + w / room
    spread = (1 / theta).sum(0)
    solve = kernel.solver(everyone, 1 / spread)
    off = arms.slopes(image, at.b) - z + w
    missing = -float(arms.dual(p).sum())
    mu = float((z * p + w * room).mean()) / 2

    def move(to_z: Tensor, to_w: Tensor) -> _Point:
        """The step that makes `z p` and `w (h - p)` change by these, to first order."""
        wanted = to_z / p - to_w / room - off
        right = (arms.signs * wanted / theta).sum(0) / spread
        du, db = balanced_solution(solve, right[:, None], missing, bias=arms.margins.bias)
        scores = right - du / spread  # K du + db
        dp = (wanted - arms.signs * scores) / theta
        return _Point(dp, (to_z - z * dp) / p, (to_w + w * dp) / room, db)

    ahead = move(-z * p, -w * room)
    length = min(1.0, _reach(at, ahead, room))
    after = float(
        ((z + length * ahead.z) * (p + length * ahead.p) + (w + length * ahead.w) * (room - length * ahead.p)).mean()
    )
    goal = mu * min(1.0, max(after / (2 * mu), 0.0)) ** 3
    ahead = move(goal - z * p - ahead.z * ahead.p, goal - w * room + ahead.w * ahead.p)
    length = min(1.0, SHORT * _reach(at, ahead, room))
    return _Point(p + length * ahead.p, z + length * ahead.z, w + length * ahead.w, at.b + length * ahead.b)


def _reach(at: _Point, ahead: _Point, room: Tensor) -> float:
    """How far a step can go until a length or a multiplier is 0."""
    reach = math.inf
    for value, change in ((at.p, ahead.p), (room, -ahead.p), (at.z, ahead.z), (at.w, ahead.w)):
        falling = torch.where(change < 0, -value / change, math.inf)
        reach = min(reach, float(falling.min()))
    return reach


def _sharpened(arms: _Arms, kernel: Kernel, at: _Point) -> Tensor:
    """The dual point with lengths near a bound put there, so that only support vectors have coefficients, and the others
    moved to where their slopes are 0."""
    share = at.p / arms.bound
    p = torch.where(share < at.z, 0.0, torch.where(1 - share < at.w, arms.bound, at.p))
    free = ((p > 0) & (p < arms.bound)).any(0).nonzero()[:, 0]
    return settled(arms.margins, arms.dual(p), at.b, free, kernel)

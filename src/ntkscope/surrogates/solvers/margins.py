"""What support vector machines minimise, for classes and for targets, with its dual and the gap between the two.

    ½‖f‖² + Σ_i L_i(y_i - f(x_i) - b),    L_i(r) = max over low_i ≤ u ≤ high_i of  u r - ε|u| - yield_i u²/2

Hinge, of a sign y: u between 0 and C y, ε = 0. Squared hinge, `C max(0, 1 - y f)²`: u of the sign y, yield `1/2C`.
ε-insensitive: u between -C and C. Its square, `C max(0, |r| - ε)²`: any u, yield `1/2C`. A dual point is such a u with
`Σ u = 0` where the intercept is free; the function that belongs to it is `f = K u`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

ROOT_STEPS = 200


@dataclass(frozen=True, eq=False)
class Margins:
    """One machine's loss, in float64 on one device."""

    targets: Float[Tensor, " n"]
    low: Float[Tensor, " n"]
    high: Float[Tensor, " n"]
    epsilon: float
    yields: Float[Tensor, " n"]
    """Positive at every point, or zero at every point."""
    bias: bool
    """Whether there is a free intercept b."""

    @property
    def squared(self) -> bool:
        return bool((self.yields > 0).all())

    def cpu(self) -> Margins:
        moved = {name: getattr(self, name).cpu() for name in ("targets", "low", "high", "yields")}
        return replace(self, **moved)

    def in_units(self, scale: float) -> Margins:
        """The same problem for the kernel divided by `scale`: the objective and the coefficients are `scale` times as large."""
        return replace(self, low=self.low * scale, high=self.high * scale, yields=self.yields / scale)

    def response(self, r: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """The derivative of a squared loss, `soft(r, ε) / yield` within the bounds of u, and where it has a slope."""
        raw = (r - r.clamp(-self.epsilon, self.epsilon)) / self.yields
        return raw.clamp(self.low, self.high), (r.abs() > self.epsilon) & (raw > self.low) & (raw < self.high)

    def loss(self, r: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """`L_i(r_i)`."""
        if self.squared:
            u, _ = self.response(r)
            return u * r - self.epsilon * u.abs() - self.yields * u.square() / 2
        return self.high * (r - self.epsilon).clamp_min(0) - self.low * (-r - self.epsilon).clamp_min(0)

    def conjugate(self, u: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """`L*_i(u_i)` of a u within its bounds."""
        return self.epsilon * u.abs() + self.yields * u.square() / 2

    def gap(self, u: Float[Tensor, " n"], image: Float[Tensor, " n"], near: float) -> tuple[float, float, float]:
        """Of the function `K u`, given as `image`: its best intercept, its objective, and by how much that can be too large.

        The duality gap, as a sum of terms that are none of them negative. What rounding leaves of `Σ u` counts as gap, times
        a bound on the intercept, and so does what rounding of the scores can add to the losses.
        """
        b = self.best_intercept(self.targets - image, near) if self.bias else 0.0
        r = self.targets - image - b
        losses = self.loss(r)
        value = float(u @ image) / 2 + float(losses.sum())
        size = self.targets.abs() + abs(b) + torch.linalg.vector_norm(u)  # in units of a kernel of diagonal about 1
        off = torch.finfo(r.dtype).eps * size
        unsure = torch.maximum(self.loss(r + off), self.loss(r - off)) - losses
        if not bool(u.any()) and float(losses.sum()) <= float(unsure.sum()):
            return b, value, 0.0  # a constant fits up to rounding
        between = float((losses + self.conjugate(u) - u * r + unsure).clamp_min(0).sum())
        return b, value, between + (abs(float(u.sum())) * (1 + abs(b)) if self.bias else 0.0)

    def best_intercept(self, r: Float[Tensor, " n"], near: float) -> float:
        """The b that minimises `Σ L_i(r_i - b)`; of several the one nearest `near`."""
        if self.squared:
            return self._balanced(r, near)
        places = torch.cat([r - self.epsilon, r + self.epsilon])  # where the slope rises, by these:
        rises = torch.cat([self.high, -self.low])
        places, order = places[rises > 0].sort()
        rises = rises[rises > 0][order]
        slopes = rises.cumsum(0) - self.high.sum()  # right of each place
        total = float(rises.sum())
        edge = torch.tensor([-1e-12 * total, 1e-12 * total], dtype=slopes.dtype, device=slopes.device)
        first = int(torch.searchsorted(slopes, edge[:1]))
        last = int(torch.searchsorted(slopes, edge[1:], right=True))
        low, high = (float(places[min(at, len(places) - 1)]) for at in (first, last))
        inside = 1e-6 * (high - low)  # at an edge rounding would cost a loss
        return min(max(near, low + inside), high - inside)

    def _balanced(self, r: Float[Tensor, " n"], near: float) -> float:
        """The b at which the responses to `r - b` sum to 0: Newton steps from `near`, halving where they leave the bracket."""
        low, high = (float(edge) for edge in torch.aminmax(r))
        low, high = low - self.epsilon, high + self.epsilon
        b = min(max(near, low), high)
        for _ in range(ROOT_STEPS):
            u, sloped = self.response(r - b)
            excess = float(u.sum())
            if abs(excess) <= 1e-15 * float(u.abs().sum()):
                break
            low, high = (b, high) if excess > 0 else (low, b)
            slope = float((sloped / self.yields).sum())
            step = b + excess / slope if slope > 0 else high + 1
            last, b = b, step if low < step < high else (low + high) / 2
            if b == last:
                break
        return b


def classes_apart(positive: Tensor, most: Float[Tensor, " n"], *, squared: bool, bias: bool) -> Margins:
    """One class against the others: hinge or squared hinge, `most` being C times the weight of each point, above 0."""
    signs = torch.where(positive, 1.0, -1.0).to(most)
    zero, bound = torch.zeros_like(most), torch.full_like(most, torch.inf) if squared else most
    low, high = torch.where(positive, zero, -bound), torch.where(positive, bound, zero)
    return Margins(signs, low, high, 0.0, 0.5 / most if squared else zero, bias)


def tube(
    targets: Float[Tensor, " n"], most: Float[Tensor, " n"], epsilon: float, *, squared: bool, bias: bool
) -> Margins:
    """Regression with an ε-insensitive loss or its square."""
    bound = torch.full_like(most, torch.inf) if squared else most
    return Margins(targets, -bound, bound, epsilon, 0.5 / most if squared else torch.zeros_like(most), bias)

"""Piecewise linear functions with one kink at zero: ReLU, leaky ReLU, the absolute value."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import mpmath
import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.infinite.layer import Layer, Nonlinearity
from ntkscope.infinite.registry import Translator, layer, module_rule

# Rounding units by which a cosine may miss 1 at two equal inputs; in float32 not more, since all entries pay for them.
STEPS = {torch.float64: 32, torch.float32: 4}


class Kinked(Nonlinearity):
    """σ(x) = b max(x, 0) + a min(x, 0). Abstract.

    E[σσ] = (b − a)² J + ab Σ and E[σ̇σ̇] = (b − a)² J̇ + ab, with the arc-cosine kernels of ReLU: for θ the angle,
    cos θ = Σ / √(q₁q₂), J = √(q₁q₂) (sin θ + (π − θ) cos θ) / 2π and J̇ = (π − θ) / 2π. Cho & Saul (2009).

    At θ = 0 rounding of the cosine by ε becomes one of √ε in J̇. The cosine is enlarged by a few rounding units and cut at
    1, so that equal inputs have θ = 0 exactly: an error of at most 2e-8 in J̇; that of J is at most 2e-9 √(q₁q₂).

    An input of zeros has no angle. Its units are zero, so their slope is PyTorch's at zero: that of the left.
    """

    accuracy: ClassVar[tuple[float, float]] = (5e-9, 1e-7)

    @property
    @abstractmethod
    def slopes(self) -> tuple[float, float]:
        """a and b: left and right of zero."""

    def covariances(self, cov: Tensor, q1: Tensor, q2: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        a, b = self.slopes
        if a == b:
            return cov * b**2, torch.full_like(cov, b**2) if slopes else None
        if any(t.requires_grad for t in (cov, q1, q2)):
            values, slope = ArcCosine.apply(cov, *torch.broadcast_tensors(q1, q2))
        else:
            values, slope = arc_cosine(cov, q1, q2)
        jump = (b - a) ** 2
        if (a, b) != (0, 1):
            values, slope = values * jump + cov * (a * b), slope * jump + a * b
        if slopes and any(bool((q.detach() == 0).any()) for q in (q1, q2)):
            one, two = (torch.full_like(q, (a + b) / 2).masked_fill(q.detach() == 0, a) for q in (q1, q2))
            slope = torch.where((q1.detach() == 0) | (q2.detach() == 0), one * two, slope)
        return values, slope

    def moments(self, q: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        a, b = self.slopes
        second = (a * a + b * b) / 2
        return q * second, torch.full_like(q, second).masked_fill(q.detach() == 0, a * a) if slopes else None

    def exact(self, cov: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
        a, b = (mpmath.mpf(s) for s in self.slopes)
        norm = np.frompyfunc(mpmath.sqrt, 1, 1)(q1 * q2)
        cosine = np.frompyfunc(lambda c: max(mpmath.mpf(-1), min(mpmath.mpf(1), c)), 1, 1)(cov / norm)
        rest = mpmath.pi - np.frompyfunc(mpmath.acos, 1, 1)(cosine)
        sine = np.frompyfunc(mpmath.sqrt, 1, 1)((1 - cosine) * (1 + cosine))
        jump = (b - a) ** 2 / (2 * mpmath.pi)
        return norm * (sine + rest * cosine) * jump + cov * (a * b), rest * jump + a * b

    def function(self, z: Tensor) -> Tensor:
        a, b = self.slopes
        return torch.where(z > 0, b * z, a * z)


def arc_cosine(cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
    """J and J̇, in nine passes over memory that fits a cache."""
    least = 1e-150 if cov.dtype == torch.float64 else 1e-18  # a cosine with nothing is 0 / least²
    enlarged = 1 + STEPS[cov.dtype] * torch.finfo(cov.dtype).eps
    norm = q1.sqrt().clamp(min=least) * q2.sqrt().clamp(min=least)
    zero = torch.zeros((), dtype=cov.dtype, device=cov.device)
    cosine = torch.addcdiv(zero, cov, norm, value=enlarged).clamp_(-1, 1)
    slope = torch.asin(cosine)  # (π − θ) / 2π = 1/4 + asin(cos θ) / 2π, and cheaper than the arc cosine
    fourth, part = (torch.full((), v, dtype=cov.dtype, device=cov.device) for v in (0.25, 1 / (4 * math.pi**2)))
    torch.add(fourth, slope, alpha=1 / (2 * math.pi), out=slope)
    values = torch.addcmul(part, cosine, cosine, value=-1 / (4 * math.pi**2)).sqrt_()
    return values.addcmul_(slope, cosine).mul_(norm), slope


class ArcCosine(torch.autograd.Function):
    """J and J̇ with the derivatives written out, finite where θ = 0: ∂J/∂Σ = J̇, ∂J/∂q₁ = √(q₂/q₁) sin θ / 4π.

    ∂J̇/∂Σ = 1 / (2π √(q₁q₂ − Σ²)) grows without bound there; it is taken as 0 at equal inputs.
    """

    @staticmethod
    def forward(ctx: Any, cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
        values, slope = arc_cosine(cov, q1, q2)
        ctx.save_for_backward(cov, q1, q2, slope)
        return values, slope

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_values: Tensor, by_slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cov, q1, q2, slope = ctx.saved_tensors
        root = (q1 * q2 - cov**2).clamp(min=0).sqrt()  # √(q₁q₂) sin θ
        inside = root > math.sqrt(STEPS[cov.dtype] * torch.finfo(cov.dtype).eps) * (q1 * q2).sqrt()
        sharp = by_slope * torch.where(inside, 1 / (2 * math.pi * root), 0)
        by_cov = by_values * slope + sharp
        by_q = []
        for q in (q1, q2):
            inverse = torch.where(q > 0, 1 / q, 0)
            by_q.append((by_values * root / (4 * math.pi) - sharp * cov / 2) * inverse)
        return by_cov, _sum_to(by_q[0], q1), _sum_to(by_q[1], q2)


def _sum_to(gradient: Tensor, like: Tensor) -> Tensor:
    """Undo broadcasting."""
    return gradient.sum_to_size(like.shape)


@layer
@final
@dataclass(frozen=True)
class Relu(Kinked):
    """max(x, 0); c_σ = 2.

    Examples:
        >>> Relu().normaliser()
        2.0
    """

    normalize: bool = False

    @property
    def slopes(self) -> tuple[float, float]:
        return 0.0, 1.0


@layer
@final
@dataclass(frozen=True)
class LeakyRelu(Kinked):
    """max(x, 0) + a min(x, 0).

    Examples:
        >>> from ntkscope.infinite import Dense, kernel, serial
        >>> x = torch.tensor([[1.0], [-1.0]])
        >>> kernel(serial(Dense(), LeakyRelu(0.5)), x, kind="nngp").dense()
        tensor([[ 0.6250, -0.5000],
                [-0.5000,  0.6250]], dtype=torch.float64)
    """

    a: float | int = 0.01
    normalize: bool = False

    @property
    def slopes(self) -> tuple[float, float]:
        return float(self.a), 1.0


@layer
@final
@dataclass(frozen=True)
class Abs(Kinked):
    """|x|; c_σ = 1."""

    normalize: bool = False

    @property
    def slopes(self) -> tuple[float, float]:
        return -1.0, 1.0


@module_rule(nn.ReLU)
def relu(module: nn.ReLU, translate: Translator, path: str) -> Layer:
    return Relu()


@module_rule(nn.LeakyReLU)
def leaky_relu(module: nn.LeakyReLU, translate: Translator, path: str) -> Layer:
    return LeakyRelu(float(module.negative_slope))

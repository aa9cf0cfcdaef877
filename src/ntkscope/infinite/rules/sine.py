"""Waves: the sine, and the one whose kernel is the Gaussian radial basis function."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, final

import mpmath
import numpy as np
import torch
from torch import Tensor

from ntkscope.core.checked import Positive
from ntkscope.infinite.layer import Nonlinearity
from ntkscope.infinite.precise import HUGE, distinct
from ntkscope.infinite.registry import layer

GONE = 1500.0  # twice the exponent whose exponential is nothing


class Wave(Nonlinearity):
    """σ(x) = A sin(ax + b). Abstract.

    E[σσ] = A²/2 (e⁻ − cos 2b e⁺) and E[σ̇σ̇] = (Aa)²/2 (e⁻ + cos 2b e⁺), with e^∓ = exp(−a²(q₁ + q₂ ∓ 2Σ)/2).
    """

    @property
    @abstractmethod
    def wave(self) -> tuple[float, float, float, float]:
        """A, a, b and cos 2b, which is exactly 0 for the radial basis function."""

    def covariances(self, cov: Tensor, q1: Tensor, q2: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        size, a, _, turned = self.wave
        # Differences first: each is exact where its terms are nearly equal. And e⁻ − e⁺ at once, since both may be near 1.
        sign = torch.where(cov.detach() < 0, -torch.ones_like(cov), 1)
        absolute = cov * sign
        distance = (q1 - absolute) + (q2 - absolute)
        largest = max((float(q.detach().max()) for q in (q1, q2) if q.numel()), default=0.0)
        if a**2 * largest > HUGE and cov.dtype == torch.float64:
            reached = torch.where(a**2 * distance.detach() < GONE, distance.detach().clamp(min=0), math.inf)
            distance = distance * distinct(reached, q1.detach() + q2.detach(), largest)
        larger = torch.exp(-(a**2) / 2 * distance)
        far = torch.where(cov.detach() < 0, larger, larger * torch.exp(-2 * a**2 * absolute))
        apart = -larger * torch.expm1(-2 * a**2 * absolute) * sign
        values = (apart + (1 - turned) * far) * (size**2 / 2)
        return values, (apart + (1 + turned) * far) * ((size * a) ** 2 / 2) if slopes else None

    def moments(self, q: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        return self.covariances(q, q, q, slopes)

    def exact(self, cov: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
        exp = np.frompyfunc(mpmath.exp, 1, 1)
        size, a, _, turned = (mpmath.mpf(value) for value in self.wave)
        near, far = exp(-(a**2) / 2 * (q1 + q2 - 2 * cov)), exp(-(a**2) / 2 * (q1 + q2 + 2 * cov))
        return (near - turned * far) * (size**2 / 2), (near + turned * far) * ((size * a) ** 2 / 2)

    def function(self, z: Tensor) -> Tensor:
        size, a, b, _ = self.wave
        return size * torch.sin(a * z + b)


@layer
@final
@dataclass(frozen=True)
class Sin(Wave):
    """sin(ax + b); cos is `Sin(1, π/2)`."""

    a: float | int = 1.0
    b: float | int = 0.0
    normalize: bool = False

    @property
    def wave(self) -> tuple[float, float, float, float]:
        return 1.0, float(self.a), float(self.b), math.cos(2 * self.b)


@layer
@final
@dataclass(frozen=True)
class Rbf(Wave):
    """√2 sin(√(2γ) x + π/4), for which E[σσ] = exp(−γ (q₁ + q₂ − 2Σ))."""

    gamma: Positive = 1.0
    normalize: bool = False

    @property
    def wave(self) -> tuple[float, float, float, float]:
        return math.sqrt(2), math.sqrt(2 * self.gamma), math.pi / 4, 0.0

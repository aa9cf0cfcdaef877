"""The Gaussian error linear unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import mpmath
import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.infinite.layer import Layer, Nonlinearity
from ntkscope.infinite.precise import gap
from ntkscope.infinite.registry import Translator, layer, module_rule
from ntkscope.infinite.rules.erf import LARGE
from ntkscope.infinite.rules.hermite import Activation


@layer
@final
@dataclass(frozen=True)
class Gelu(Nonlinearity):
    """x Φ(x), Φ the normal distribution function. With p = (1 + q₁)(1 + q₂) and D = p − Σ²:

    P = E[Φ(u)Φ(v)] = 1/4 + asin(Σ/√p) / 2π, ψ = E[φ(u)φ(v)] = 1 / (2π √D),
    E[σσ] = Σ P + ψ (Σ² + q₁q₂ D) / p, E[σ̇σ̇] = P + Σ ψ (1/D + (2 + q₁ + q₂)/p).
    Smooth also at equal inputs. Tsuchida et al. (2021) give the first.

    Examples:
        >>> from ntkscope.infinite import Dense, kernel, serial
        >>> kernel(serial(Dense(), Gelu()), torch.ones(1, 2), kind="nngp").dense().round(decimals=4)
        tensor([[0.4252]], dtype=torch.float64)
    """

    normalize: bool = False

    def covariances(self, cov: Tensor, q1: Tensor, q2: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        D = (1 + q1) + q2 + gap(cov, q1, q2, LARGE)
        return _formulas(cov, q1, q2, D, slopes, torch.sqrt, torch.atan2, math.pi)

    def moments(self, q: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        return self.covariances(q, q, q, slopes)

    def exact(self, cov: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
        sqrt, atan2 = np.frompyfunc(mpmath.sqrt, 1, 1), np.frompyfunc(mpmath.atan2, 2, 1)
        return _formulas(cov, q1, q2, (1 + q1) * (1 + q2) - cov * cov, True, sqrt, atan2, mpmath.pi)

    def function(self, z: Tensor) -> Tensor:
        return nn.functional.gelu(z)


def _formulas(cov: Any, q1: Any, q2: Any, D: Any, slopes: bool, sqrt: Any, atan2: Any, pi: Any) -> tuple[Any, Any]:
    """E[σσ] and E[σ̇σ̇] for tensors and for arrays of mpmath numbers."""
    p = (1 + q1) * (1 + q2)
    root = sqrt(D)
    psi = 1 / (root * (2 * pi))
    P = atan2(cov, root) / (2 * pi) + 0.25
    values = cov * P + psi * (cov * cov + q1 * q2 * D) / p
    if not slopes:
        return values, None
    return values, P + cov * psi * (1 / D + (2 + q1 + q2) / p)


@module_rule(nn.GELU)
def gelu(module: nn.GELU, translate: Translator, path: str) -> Layer:
    """The exact one in closed form, its tanh approximation by quadrature."""
    return Gelu() if module.approximate == "none" else Activation(module)

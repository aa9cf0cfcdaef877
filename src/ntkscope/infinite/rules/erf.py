"""The error function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import mpmath
import numpy as np
import torch
from torch import Tensor

from ntkscope.infinite.layer import Layer, Nonlinearity
from ntkscope.infinite.precise import gap
from ntkscope.infinite.registry import Translator, layer, module_rule
from ntkscope.models._layers import Erf as ErfModule

LARGE = 1e3  # variances from which products have to be formed with more digits


@layer
@final
@dataclass(frozen=True)
class Erf(Nonlinearity):
    """erf(x): E[σσ] = 2/π asin(2Σ / √((1 + 2q₁)(1 + 2q₂))), E[σ̇σ̇] = 4/π / √((1 + 2q₁)(1 + 2q₂) − 4Σ²).

    Smooth also at equal inputs. Williams (1997).

    Examples:
        >>> round(Erf().normaliser() * 2 / math.pi * math.asin(2 / 3), 12)
        1.0
    """

    normalize: bool = False

    def covariances(self, cov: Tensor, q1: Tensor, q2: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        # The arc sine of Σ / √… is ill-conditioned at equal inputs of large size, the arc tangent nowhere.
        root = torch.add((1 + 2 * q1) + 2 * q2, gap(cov, q1, q2, LARGE), alpha=4).sqrt()
        values = torch.atan2(2 * cov, root) * (2 / math.pi)
        return values, (4 / math.pi) / root if slopes else None

    def moments(self, q: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        values = torch.atan2(2 * q, (1 + 4 * q).sqrt()) * (2 / math.pi)
        return values, (1 + 4 * q).rsqrt() * (4 / math.pi) if slopes else None

    def exact(self, cov: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
        root, asin = np.frompyfunc(mpmath.sqrt, 1, 1), np.frompyfunc(mpmath.asin, 1, 1)
        product = (1 + 2 * q1) * (1 + 2 * q2)
        return asin(2 * cov / root(product)) * (2 / mpmath.pi), 4 / mpmath.pi / root(product - 4 * cov**2)

    def function(self, z: Tensor) -> Tensor:
        return torch.erf(z)


@module_rule(ErfModule)
def erf(module: ErfModule, translate: Translator, path: str) -> Layer:
    return Erf()

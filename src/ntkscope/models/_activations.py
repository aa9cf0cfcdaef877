"""Activations as small modules, and their versions normalised under a standard normal input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from scipy.special import roots_hermitenorm
from torch import Tensor, nn

from ntkscope.core import Registry, UsageError
from ntkscope.core.checked import Count


class Erf(nn.Module):
    """σ(z) = erf(z)."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.erf(z)


class Quadratic(nn.Module):
    """σ(z) = z²."""

    def forward(self, z: Tensor) -> Tensor:
        return z.square()


ACTIVATIONS: Registry[Callable[[], nn.Module]] = Registry("activation")
ACTIVATIONS.add("relu", nn.ReLU)
ACTIVATIONS.add("tanh", nn.Tanh)
ACTIVATIONS.add("erf", Erf)
ACTIVATIONS.add("quadratic", Quadratic)
ACTIVATIONS.add("identity", nn.Identity)
ACTIVATIONS.add("gelu", nn.GELU)
ACTIVATIONS.add("softplus", nn.Softplus)

NORMALISED = "normalised-"


def gaussian_moments(activation: nn.Module, nodes: Count = 256) -> tuple[float, float]:
    """(E[σ(z)], E[σ(z)²]) for z ~ N(0, 1): closed forms where they exist, Gauss–Hermite quadrature elsewhere.

    Quadrature converges geometrically in √nodes for analytic σ; kinked ones other than ReLU keep an error of
    order 1/nodes. The inverse of the second is the constant c_σ of the NTK literature.

    >>> mean, second = gaussian_moments(nn.ReLU())
    >>> round(mean * math.sqrt(2 * math.pi), 12), second
    (1.0, 0.5)
    """
    match activation:
        case nn.ReLU():
            return 1 / math.sqrt(2 * math.pi), 0.5
        case nn.Identity():
            return 0.0, 1.0
        case Quadratic():
            return 1.0, 3.0
        case Erf():
            return 0.0, 2 / math.pi * math.asin(2 / 3)
    z, w = (torch.from_numpy(a) for a in roots_hermitenorm(nodes))
    with torch.no_grad():
        values = activation(z)
    w = w / w.sum()
    return float(w @ values), float(w @ values.square())


class Normalised(nn.Module):
    """(σ(z) − E[σ]) / √Var[σ] under z ~ N(0, 1), so that E = 0 and E[·²] = 1."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        mean, second = gaussian_moments(activation)
        variance = second - mean**2
        if not variance > 0:
            raise UsageError(f"{activation} is constant under N(0, 1); expected an activation that varies")
        self.activation = activation
        self.mean = mean if abs(mean) > 1e-15 else 0.0  # an odd σ stays exactly odd
        self.std = math.sqrt(second - self.mean**2)

    def forward(self, z: Tensor) -> Tensor:
        return (self.activation(z) - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean:.6g}, std={self.std:.6g}"


def activation(kind: str | nn.Module) -> nn.Module:
    """A fresh activation module: a name, `normalised-` and a name, or a module to copy.

    >>> activation("erf")
    Erf()
    >>> activation("normalised-quadratic")
    Normalised(
      mean=1, std=1.41421
      (activation): Quadratic()
    )
    """
    if isinstance(kind, nn.Module):
        return copy.deepcopy(kind)
    if kind.lower().startswith(NORMALISED):
        return Normalised(ACTIVATIONS[kind[len(NORMALISED) :]]())
    return ACTIVATIONS[kind]()

"""Layers that PyTorch lacks: activations, plain and normalised under N(0, 1), the NTK's linear layer, a constant factor."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from scipy.special import roots_hermitenorm
from torch import Tensor, nn
from torch.nn import functional

from ntkscope.core import Registry, UsageError
from ntkscope.core.checked import Count, NonNegative, checked


class Erf(nn.Module):
    """σ(z) = erf(z).

    Examples:
        >>> Erf()(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.8427])
    """

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


@checked
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


@checked
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

    Examples:
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


class NTKLinear(nn.Module):
    """y = σ_w W x / √fan_in + σ_b b, with W and b of order one and the scales outside the parameters.

    A network of such layers is the same random function as one with W ~ N(0, σ_w² / fan_in), b ~ N(0, σ_b²) in the
    standard parametrisation, but its tangent kernel has a limit as the width grows. Jacot et al. (2018), section 3.

    Examples:
        >>> layer = NTKLinear(4, 1, sigma_w=2.0, bias=False)
        >>> _ = nn.init.ones_(layer.weight)
        >>> layer(torch.ones(1, 4)).item()
        4.0
    """

    def __init__(
        self,
        in_features: Count,
        out_features: Count,
        bias: bool = True,
        sigma_w: NonNegative = 1.0,
        sigma_b: NonNegative = 1.0,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.sigma_w, self.sigma_b = sigma_w, sigma_b
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw weights and biases from N(0, 1)."""
        nn.init.normal_(self.weight)
        if self.bias is not None:
            nn.init.normal_(self.bias)

    @property
    def weight_scale(self) -> float:
        """σ_w / √fan_in, what the weight is multiplied by."""
        return self.sigma_w / math.sqrt(self.in_features)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... k"]:
        # The scales act on inputs and outputs, not on the parameters: the engine's rule for an affine layer then applies.
        if self.bias is None or self.sigma_b == 0:
            return functional.linear(self.weight_scale * x, self.weight)
        return self.sigma_b * functional.linear(self.weight_scale / self.sigma_b * x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None},"
            f" sigma_w={self.sigma_w:g}, sigma_b={self.sigma_b:g}"
        )


@checked
class Scale(nn.Module):
    """y = factor · x, with nothing to train: where a parametrisation keeps its scales outside the parameters."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def extra_repr(self) -> str:
        return f"factor={self.factor:.6g}"

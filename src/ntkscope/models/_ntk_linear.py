"""The linear layer of the NTK parametrisation."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ntkscope.core.checked import Count, NonNegative


class NTKLinear(nn.Module):
    """y = σ_w W x / √fan_in + σ_b b, with W and b of order one and the scales outside the parameters.

    A network of such layers is the same random function as one with W ~ N(0, σ_w² / fan_in), b ~ N(0, σ_b²) in the
    standard parametrisation, but its tangent kernel has a limit as the width grows. Jacot et al. (2018), section 3.

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

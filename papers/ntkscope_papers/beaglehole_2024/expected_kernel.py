"""E[𝒦]: the mean over initialisations of a fully connected network's pre-activation tangent kernel, in closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.infinite import Relu

Dual = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(cov, q₁, q₂) to (E[φ(u)φ(v)], E[φ̇(u)φ̇(v)]) for (u, v) ~ N(0, [[q₁, cov], [cov, q₂]])."""


def quadratic_dual(cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
    """φ(z) = z²: `q₁q₂ + 2 cov²` and `4 cov`."""
    return q1 * q2 + 2 * cov.square(), 4 * cov


def relu_dual(cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
    """The arc-cosine kernels of order 1 and 0."""
    values, slopes = Relu().covariances(cov, q1, q2, True)
    assert slopes is not None
    return values, slopes


DUALS: dict[str, Dual] = {"relu": relu_dual, "quadratic": quadratic_dual}


def expected_kernel(
    X: Float64[Tensor, "n d"], *, activation: str | Dual, depth: int = 1, width: int | None = None
) -> Float64[Tensor, "n n"]:
    """E[𝒦] of the first layer in a network with `depth` hidden layers and one output; O(depth n²).

    W_ℓ ~ N(0, 1 / fan-in), no biases. With Σ_0 = XXᵀ/d and Σ_{ℓ+1} = E[φφ](Σ_ℓ), E[𝒦] = Π_m E[φ̇φ̇](Σ_m). Without `width` all
    hidden layers are infinitely wide; for one hidden layer that is exact at every width. With `width` k, two quadratic layers:
    their exact mean 16 ((1 - 1/k) c (ab + 2c²) + (3/k) (9abc + 6c³)), where [[a, c], [c, b]] are entries of Σ_0.

    >>> expected_kernel(torch.tensor([[2.0]]), activation="quadratic")  # 4 x²
    tensor([[16.]])
    >>> expected_kernel(torch.tensor([[1.0]]), activation="relu", depth=2)  # 1/2 · 1/2
    tensor([[0.2500]])
    """
    cov = X @ X.T / X.shape[1]
    if width is not None:
        product = cov.diagonal()[:, None] * cov.diagonal()[None, :]
        second, third = product + 2 * cov.square(), 9 * product * cov + 6 * cov**3  # E[h²h'²], E[h³h'³]
        return 16 * ((1 - 1 / width) * cov * second + 3 / width * third)
    dual = DUALS[activation] if isinstance(activation, str) else activation
    kernel = torch.ones_like(cov)
    for _ in range(depth):
        q = cov.diagonal()
        cov, slopes = dual(cov, q[:, None], q[None, :])
        kernel = kernel * slopes
    return kernel

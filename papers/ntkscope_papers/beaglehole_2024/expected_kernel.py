"""E[𝒦]: the mean over initialisations of a fully connected network's pre-activation tangent kernel, in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import tensor_of
from ntkscope.core.checked import Count, CountOrZero, Positive, checked
from ntkscope.infinite import Erf, Gelu, Relu
from ntkscope.infinite.layer import Nonlinearity

Dual: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(cov, q₁, q₂) to (E[φ(u)φ(v)], E[φ̇(u)φ̇(v)]) for (u, v) ~ N(0, [[q₁, cov], [cov, q₂]])."""


def quadratic_dual(cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
    """φ(z) = z²: `q₁q₂ + 2 cov²` and `4 cov`."""
    return q1 * q2 + 2 * cov.square(), 4 * cov


def _of(layer: Nonlinearity) -> Dual:
    def dual(cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = layer.covariances(cov, q1, q2, True)
        assert slopes is not None
        return values, slopes

    return dual


def _identity(cov: Tensor, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
    return cov, torch.ones_like(cov)


DUALS: dict[str, Dual] = {
    "relu": _of(Relu()),
    "erf": _of(Erf()),
    "gelu": _of(Gelu()),
    "identity": _identity,
    "quadratic": quadratic_dual,
}


@checked
def expected_kernel(
    X: Any,
    *,
    activation: Annotated[str, tuple(DUALS)] | Nonlinearity | Dual,
    depth: Count = 1,
    layer: CountOrZero = 0,
    scales: Positive | Sequence[Positive] = 1.0,
    width: Count | None = None,
) -> Float64[Tensor, "n n"]:
    """E[𝒦] of layer `layer` (from 0, the input's) in a network with `depth` hidden layers and one output; O(depth n²).

    W_ℓ ~ N(0, s_ℓ / fan-in), no biases, `scales` = s_0 … s_depth (the readout's last). With Σ_0 = s_0 XXᵀ/d and
    Σ_{ℓ+1} = s_{ℓ+1} E[φφ](Σ_ℓ), E[𝒦] = Π_{m ≥ layer} s_{m+1} E[φ̇φ̇](Σ_m). Without `width` all hidden layers are infinitely
    wide. For one hidden layer that is exact at every width, and with `width` k the quadratic network of two has its exact
    mean too, 16 s_1² s_2 ((1 - 1/k) c (ab + 2c²) + (3/k) (9abc + 6c³)), where [[a, c], [c, b]] are entries of Σ_0.
    `activation`: a name, a layer of `ns.infinite`, or a function from (cov, q₁, q₂) to (E[φφ], E[φ̇φ̇]).

    >>> expected_kernel([[2.0]], activation="quadratic", depth=1)  # 4 x²
    tensor([[16.]], dtype=torch.float64)
    >>> expected_kernel([[1.0]], activation="relu", depth=2)  # 1/2 · 1/2
    tensor([[0.2500]], dtype=torch.float64)
    """
    inputs = tensor_of(X, "X", 2)
    dual = _dual(activation)
    if layer >= depth:
        raise UsageError(f"got layer {layer} of {depth} hidden layers; expected layer 0 … {depth - 1}")
    s = _scales(scales, depth + 1)
    cov = s[0] * inputs @ inputs.T / inputs.shape[1]
    if width is not None and depth > 1:
        return _quadratic_at(cov, s, width, activation, depth, layer)
    kernel = torch.ones_like(cov)
    for m in range(depth):
        q = cov.diagonal()
        values, slopes = dual(cov, q[:, None], q[None, :])
        if m >= layer:
            kernel = kernel * (s[m + 1] * slopes)
        cov = s[m + 1] * values
    return kernel


def _quadratic_at(
    c: Tensor, s: Sequence[float], width: int, activation: Any, depth: int, layer: int
) -> Float64[Tensor, "n n"]:
    """Two quadratic layers of finite width: second and third moments of the first layer's units, fourth of the weights."""
    if activation != "quadratic" or depth != 2 or layer != 0:
        raise UsageError(
            f"got width={width} with {depth} hidden layers ({activation}), layer {layer}; a closed form at finite width"
            " exists for one hidden layer, and for layer 0 of two quadratic ones: leave width out for the infinite-width limit"
        )
    q = c.diagonal()
    product = q[:, None] * q[None, :]
    second, third = product + 2 * c.square(), 9 * product * c + 6 * c**3  # E[h²h'²], E[h³h'³]
    return 16 * s[1] ** 2 * s[2] * ((1 - 1 / width) * c * second + 3 / width * third)


def _dual(activation: str | Nonlinearity | Dual) -> Dual:
    if isinstance(activation, Nonlinearity):
        return _of(activation)
    return DUALS[activation] if isinstance(activation, str) else activation


def _scales(scales: float | Sequence[float], count: int) -> list[float]:
    found = [float(scales)] * count if isinstance(scales, int | float) else [float(scale) for scale in scales]
    if len(found) != count:
        raise UsageError(f"got scales {found}; expected one positive number, or {count}: hidden layers and readout")
    return found

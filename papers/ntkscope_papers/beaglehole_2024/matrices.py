"""What the paper's experiments share: networks, one layer's inputs and tangents, differences of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import generator


def mlp(in_features: int, width: int, seed: int, *, depth: int = 2, **options: Any) -> nn.Module:
    """A network without biases, its weights N(0, 1/fan-in)."""
    sizes = {"in_features": in_features, "widths": width, "depth": depth}
    return models.build("mlp", **sizes, bias=False, sigma_w=1.0, seed=seed, **options)


@dataclass(frozen=True, eq=False)
class LayerView:
    """`outputs` f; `inputs` of the layer; `tangents` ∂f/∂h, (n, c, out)."""

    outputs: Float[Tensor, "n c"]
    inputs: Float[Tensor, "n i"]
    tangents: Float[Tensor, "n c o"]


def layer_view(model: nn.Module, layer: nn.Module, x: Float[Tensor, "n d"]) -> LayerView:
    """Of a layer that is called once, with one row per sample; c backward passes of autograd."""
    calls: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda _, inputs, hidden: calls.append((inputs[0], hidden)))
    try:
        outputs = model(x)
    finally:
        handle.remove()
    ((inputs, hidden),) = calls
    columns = outputs.sum(0).unbind()
    tangents = [torch.autograd.grad(column, hidden, retain_graph=True)[0] for column in columns]
    return LayerView(outputs.detach(), inputs.detach(), torch.stack(tangents, dim=1))


def normal(seed: int, name: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "early time", name), dtype=torch.float64)


def relative(found: Tensor | float, expected: Tensor | float) -> float:
    """‖found - expected‖ / ‖expected‖."""
    gap, size = (torch.as_tensor(value, dtype=torch.float64).norm() for value in (found - expected, expected))
    return float(gap / size)

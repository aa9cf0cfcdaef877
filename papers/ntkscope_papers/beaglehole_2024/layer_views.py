"""What one linear layer saw and sent back: its inputs and the gradients of every output by its pre-activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class LayerView:
    """`outputs` f; `inputs` of the layer; `tangents` ∂f/∂h, (n, c, out)."""

    outputs: Float[Tensor, "n c"]
    inputs: Float[Tensor, "n i"]
    tangents: Float[Tensor, "n c o"]


def layer_view(model: nn.Module, layer: nn.Module, x: Float[Tensor, "n d"]) -> LayerView:
    """Of a layer that is called once, with one row per sample; c backward passes of autograd."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda _, given, made: seen.append((given[0], made)))
    try:
        outputs = model(x)
    finally:
        handle.remove()
    ((given, made),) = seen
    columns = outputs.sum(0).unbind()
    tangents = [torch.autograd.grad(column, made, retain_graph=True)[0] for column in columns]
    return LayerView(outputs.detach(), given.detach(), torch.stack(tangents, dim=1))

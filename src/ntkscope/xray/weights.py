"""The weights of a network that are matrices: affine layers, embeddings, convolutions as out × in·k·k."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.tangent.subject import select
from ntkscope.xray.network import Params


def matrices(model: nn.Module, params: Params = None) -> dict[str, nn.Parameter]:
    """The parameters with two sides or more, by name, frozen ones too; of those that `params` chose, if it did.

    >>> list(matrices(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))))
    ['0.weight', '3.weight']
    """
    chosen = dict(model.named_parameters()) if params is None else select(model, params)
    return {
        name: weight
        for name, weight in chosen.items()
        if weight.ndim >= 2 and weight.is_floating_point() and min(as_matrix(weight).shape) >= 2
    }


def as_matrix(weight: Tensor) -> Float[Tensor, "rows columns"]:
    """A weight as a matrix, one row per output."""
    return weight.detach().flatten(1)


def shapes(weights: Mapping[str, Tensor]) -> tuple[tuple[int, int], ...]:
    """Rows and columns of each."""
    return tuple((weight.shape[0], weight[0].numel()) for weight in weights.values())

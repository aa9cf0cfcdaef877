"""The weights that an X-ray takes apart: matrices of the network, by name, of the parameters that were chosen."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from ntkscope.tangent.model.subject import select
from ntkscope.tracking.weights import matrices
from ntkscope.xray.network import Params


def chosen_matrices(model: nn.Module, params: Params = None) -> dict[str, nn.Parameter]:
    """The weights that are matrices, frozen ones too; of those that `params` chose, if it did.

    >>> list(chosen_matrices(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), ("1.*",)))
    ['1.weight']
    """
    chosen = None if params is None else select(model, params)
    return {
        name: weight
        for name, weight in matrices(model).items()
        if weight.is_floating_point() and (chosen is None or name in chosen)
    }


def shapes(weights: Mapping[str, Tensor]) -> tuple[tuple[int, int], ...]:
    """Rows and columns of each."""
    return tuple((weight.shape[0], weight[0].numel()) for weight in weights.values())

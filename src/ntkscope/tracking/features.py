"""Features: at each moment, how well each layer's weights agree with what the outputs react to (the neural feature ansatz)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import NumericalError
from ntkscope.linalg.features.correlation import haar_control, weighted_correlation
from ntkscope.linalg.features.directions import multiple_of_identity
from ntkscope.tangent.matrices.feature_matrices import LayerFeatures, feature_matrices
from ntkscope.tracking.weights import DIGITS

NFA = "nfa"
DRAWS = 40  # of the control: its 2.5 % and 97.5 % quantiles are the two smallest and largest, about
WIDEST = 256  # outputs of a layer up to which there is a control
KEPT = 50_000_000  # numbers of all initial weights up to which they are kept, for the centred correlation


def feature_rows(
    model: nn.Module,
    x: Any,
    globs: Sequence[str],
    first: Mapping[str, Tensor],
    *,
    memory: str | int | float,
    seed: int,
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """One row of the series `alignment` per layer, and the layers' weights; `first`: those that training began with.

    `correlation` is ρ(WᵀW, WᵀKW), `control_low` and `control_high` the ends of the 95 % range with random eigenvectors of K,
    `centred` the correlation of W - W₀. A layer that makes the outputs has no row: its K is the identity, its ρ 1.
    """
    with torch.enable_grad():
        found = feature_matrices(model, x, layers=list(globs), memory=memory, certify="sampled")
    rows = []
    for name, layer in found.items():
        assert layer.weight is not None
        if not multiple_of_identity(layer.ptk):
            rows.append({"of": f"{NFA}:{name}", **_row(layer, first.get(name), seed)})
    size = sum(layer.weight.numel() for layer in found.values() if layer.weight is not None)
    weights = {name: layer.weight.cpu() for name, layer in found.items() if layer.weight is not None}
    return rows, weights if size <= KEPT else {}


def _row(layer: LayerFeatures, first: Tensor | None, seed: int) -> dict[str, float]:
    """What is defined of one layer: nothing where no output reacts to it."""
    W, K = layer.weight, layer.ptk
    assert W is not None
    row: dict[str, float] = {}
    try:
        row["correlation"] = weighted_correlation(W, K)
        if len(K) <= WIDEST:
            ends = haar_control(W, K, draws=DRAWS, seed=seed).quantiles
            row |= {"control_low": ends[0.025], "control_high": ends[0.975]}
        if first is not None and first.shape == W.shape:
            row["centred"] = weighted_correlation(W - first.to(W), K)
    except NumericalError:  # zero weights, zero gradients, or weights that did not move
        pass
    return {name: float(f"{value:.{DIGITS}g}") for name, value in row.items()}

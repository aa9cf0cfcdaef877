"""Fixed embeddings of items: their inputs, and what the network made of them before it was trained.

A trained network has seen its training items and puts them elsewhere than items it has not seen. Vectors that do not depend on
the training are the same for both, so that a difference is one of the data.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope.core import Inputs, UsageError, generator
from ntkscope.core.model.tree import tensors
from ntkscope.tangent import activations

Vectors = Float64[np.ndarray, "n p"]
WIDEST = 4096  # numbers per item; wider inputs are added up in so many sums with random signs
WORDS = 1024  # the same for counts of tokens


def input_vectors(x: Inputs) -> Vectors:
    """Each item's inputs as one vector: its numbers, or how often each token occurs in it.

    >>> input_vectors({"a": torch.ones(2, 3), "b": torch.zeros(2, 1, 2)}).shape
    (2, 5)
    """
    if isinstance(x, Mapping) and isinstance(x.get("input_ids"), Tensor):
        return _counts(x["input_ids"], x.get("attention_mask"))
    leaves = tensors(x)
    numbers = [leaf.reshape(len(leaf), -1) for leaf in leaves if leaf.is_floating_point()]
    if numbers:
        return _narrowed(torch.cat([leaf.detach().cpu().double() for leaf in numbers], dim=1))
    ids = [leaf for leaf in leaves if leaf.dim() == 2 and not leaf.is_complex()]
    if not ids:
        raise UsageError("the inputs are neither numbers nor tokens; expected one of them")
    return _counts(ids[0], None)


def initial_vectors(initial: nn.Module, x: Inputs, device: torch.device | None) -> Vectors:
    """What the last stage of the initial network puts out, averaged over positions."""
    found = activations(initial, x, reduce="mean", device=device or _place(initial))
    rows = list(found.values())[-1]
    assert isinstance(rows, Tensor)
    return rows.double().cpu().numpy()


def _place(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _narrowed(rows: Tensor) -> Vectors:
    if rows.shape[1] <= WIDEST:
        return np.asarray(rows.numpy())
    draw = generator(0, "fixed vectors", rows.shape[1])
    places = torch.randint(WIDEST, (rows.shape[1],), generator=draw)
    signs = torch.randint(2, (rows.shape[1],), generator=draw, dtype=torch.float64) * 2 - 1
    sums = torch.zeros(len(rows), WIDEST, dtype=torch.float64).index_add_(1, places, rows * signs)
    return np.asarray(sums.numpy())


def _counts(ids: Tensor, mask: Tensor | None) -> Vectors:
    """Counts of tokens that are not padding, several tokens per count where there are many."""
    ids = ids.detach().cpu().long()
    weights = torch.ones_like(ids, dtype=torch.float64) if mask is None else mask.detach().cpu().double()
    draw = generator(0, "fixed vectors", "tokens")
    largest = int(ids.max()) + 1
    places = torch.arange(largest) if largest <= WORDS else torch.randint(WORDS, (largest,), generator=draw)
    found = torch.zeros(len(ids), WORDS, dtype=torch.float64)
    return np.asarray(found.scatter_add_(1, places[ids.clamp(min=0)], weights).numpy())

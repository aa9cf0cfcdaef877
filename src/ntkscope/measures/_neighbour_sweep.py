"""k nearest neighbours in the first d coordinates, for a rising grid of d: distances grow by the coordinates that are added."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkscope.core.machine.tensor_cores import tensor_cores

ROOM, CUDA_ROOM = 1 << 28, 1 << 32  # bytes of distances held at once


def neighbour_sweep(
    train: Float[Tensor, "n p"],
    numbers: Int[Tensor, " n"],
    test: Float[Tensor, "m p"],
    dims: Sequence[int],
    k: int,
    ties: str,
) -> dict[int, Int[Tensor, " m"]]:
    """The class number with the most votes among the k nearest, for every d of the rising `dims`; O(n m (p + |dims|)).

    What is ranked is `Σ_j (b_j² - 2 a_j b_j)`, the squared distance without the test item's own norm. The last column of both
    sides carries the squares, so that a step of the grid is one matrix product.
    """
    room = CUDA_ROOM if train.is_cuda else ROOM
    rows = max(1, room // (train.element_size() * len(train)))
    found: dict[int, list[Tensor]] = {d: [] for d in dims}
    for part in test.split(rows):
        distances = train.new_zeros(len(part), len(train))
        for low, d in pairwise([0, *dims]):
            fresh = train[:, low:d]
            ahead = torch.cat([-2 * fresh, fresh.square().sum(1, keepdim=True)], 1)
            behind = torch.cat([part[:, low:d], part.new_ones(len(part), 1)], 1)
            with tensor_cores(False):
                distances.addmm_(behind, ahead.T)
            nearest = distances.topk(k, dim=1, largest=False).indices  # nearest first
            found[d].append(voted(numbers[nearest], ties))
    return {d: torch.cat(parts) for d, parts in found.items()}


def voted(labels: Int[Tensor, "m k"], ties: str) -> Int[Tensor, " m"]:
    """The most frequent class of each row; of tied ones that of the nearest neighbour, or the first class.

    >>> voted(torch.tensor([[2, 1, 1, 2]]), "nearest"), voted(torch.tensor([[2, 1, 1, 2]]), "first")
    (tensor([2]), tensor([1]))
    """
    counts = torch.zeros(len(labels), int(labels.max()) + 1, dtype=torch.int64, device=labels.device)
    counts.scatter_add_(1, labels, torch.ones_like(labels))
    if ties == "first":
        return counts.argmax(1)
    leads = counts.gather(1, labels) == counts.amax(1, keepdim=True)
    return labels.gather(1, leads.to(torch.int8).argmax(1, keepdim=True))[:, 0]

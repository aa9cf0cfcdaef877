"""Batches: which items each step sees, fixed by the seed alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from ntkscope.core import UsageError, generator


@dataclass(frozen=True)
class BatchOrder:
    """The items of step s are a slice of a permutation that depends on the seed and the epoch only.

    No state is carried from step to step, so training can resume from any step, and other random draws do not affect it.

    >>> order = BatchOrder(items=5, size=2, seed=0)
    >>> order.per_epoch, sorted(torch.cat([order.indices(s) for s in range(3)]).tolist())
    (3, [0, 1, 2, 3, 4])
    """

    items: int
    size: int
    seed: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.items < 1:
            raise UsageError("the part to train on is empty; expected at least one item")
        if not 1 <= self.size <= self.items:
            raise UsageError(
                f"batch_size={self.size}; expected 1 ... {self.items}, the number of items, or None for all"
            )

    @property
    def full(self) -> bool:
        """Whether a batch is the whole part."""
        return self.size == self.items

    @property
    def per_epoch(self) -> int:
        """Steps per epoch."""
        return self.items // self.size if self.drop_last else -(-self.items // self.size)

    def permutation(self, epoch: int) -> Int[Tensor, " n"]:
        """The order of the items in `epoch`; their own order when a batch is everything."""
        if self.full:
            return torch.arange(self.items)
        return torch.randperm(self.items, generator=generator(self.seed, "batches", epoch))

    def place(self, step: int) -> slice:
        """Where in its epoch's permutation the items of the update after `step` updates lie."""
        at = step % self.per_epoch * self.size
        return slice(at, min(at + self.size, self.items))

    def indices(self, step: int) -> Int[Tensor, " b"]:
        """The items of the update after `step` updates."""
        return self.permutation(step // self.per_epoch)[self.place(step)]

"""The batches of stacked networks: each member's own items, changed at random as `fit` changes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ntkscope.core import Inputs, Part, derive_seed
from ntkscope.core.model.tree import join, map_leaves, take
from ntkscope.training.augment import ItemAugmentation
from ntkscope.training.batches import BatchOrder
from ntkscope.training.ensembles.stacked import MemberData
from ntkscope.training.settings import Augment

AHEAD = {"cuda": 64}  # steps whose batches are gathered at once, by kind of device: where launches set the pace
AHEAD_BYTES = 1 << 26  # of those batches, at most


class MemberBatches:
    """The batch of every step, of all members. On a GPU several steps are gathered at once, which changes none."""

    def __init__(
        self, data: MemberData, orders: Sequence[BatchOrder], seeds: Sequence[int], augment: Augment | None
    ) -> None:
        self._data, self._orders, self._seeds, self._augment = data, tuple(orders), tuple(seeds), augment
        self._first, self._device = self._orders[0], data.part.y.device
        self._permutation, self._keys = (-1, torch.empty(0)), (-1, torch.empty(0))
        self._generator = torch.Generator(device=self._device)
        self._ahead: tuple[int, int, Any] = (0, 0, None)  # gathered: from this step, up to this one
        self._by_item = augment is None or isinstance(augment, ItemAugmentation)  # else drawn for the batch of one step
        self._tried = augment is None

    @property
    def constant(self) -> bool:
        """Whether every batch is the same, in the same memory."""
        return self._first.full and self._augment is None

    @property
    def axis(self) -> int | None:
        """The axis along which the members' batches lie; None where all see the same."""
        return self._data.axis if self.constant else 0

    def at(self, step: int) -> Part:
        """The batch of the update after `step` updates."""
        if self.constant:
            return self._data.everything()
        start, stop, gathered = self._ahead
        if not start <= step < stop:
            start, stop = step, step + self._steps(step)
            gathered = self._gather(start, stop)
            if stop - start > 1 and not self._tried:
                self._tried, alone = True, self._gather(start, start + 1)
                if not _same_start(gathered[0], alone[0]):  # it looks at the batch, though it should not
                    self._by_item, stop, gathered = False, start + 1, alone
            self._ahead = (start, stop, gathered)
        return Part(*map_leaves(lambda leaf: leaf[step - start], gathered))

    def _steps(self, step: int) -> int:
        """How many steps are gathered at once: none of another epoch, none with fewer items."""
        if not self._by_item:
            return 1
        same = self._first.items // self._first.size - step % self._first.per_epoch
        bytes_of_step = self._bytes_of_item() * len(self._seeds) * self._first.size
        most = min(AHEAD.get(self._device.type, 1), AHEAD_BYTES // max(1, bytes_of_step))
        return max(1, min(same, most))

    def _bytes_of_item(self) -> int:
        sizes: list[int] = []
        map_leaves(
            lambda leaf: sizes.append(leaf.numel() * leaf.element_size()), (self._data.part.x, self._data.part.y)
        )
        return math.ceil(sum(sizes) / self._data.part.y.shape[0 if self._data.shared else 1])

    def _gather(self, start: int, stop: int) -> tuple[Any, Any, dict[str, Any]]:
        """The batches of some steps of one epoch, leaves (steps, k, b, …)."""
        epoch, members = start // self._first.per_epoch, len(self._seeds)
        if self._first.full:
            index = torch.arange(self._data.items, device=self._device).expand(stop - start, members, -1)
        else:
            if self._permutation[0] != epoch:
                drawn = {order: order.permutation(epoch) for order in set(self._orders)}  # members may share a seed
                every = torch.stack([drawn[order] for order in self._orders]).to(self._device)
                self._permutation = (epoch, every)
            where = slice(self._first.place(start).start, self._first.place(stop - 1).stop)
            index = self._permutation[1][:, where].unflatten(1, (stop - start, -1)).movedim(1, 0)
        batch = self._data.rows(index)
        return self._changed(batch.x, index, start), batch.y, dict(batch.extras)

    def _changed(self, x: Inputs, index: Int64[Tensor, "steps k b"], step: int) -> Inputs:
        """The inputs (steps, k, b, …), each changed as `fit` changes it."""
        augment = self._augment
        if augment is None:
            return x
        if isinstance(augment, ItemAugmentation):
            epoch = step // self._first.per_epoch
            if self._keys[0] != epoch:
                keys = torch.tensor([augment.keys(seed, epoch) for seed in self._seeds], device=self._device)
                self._keys = (epoch, keys)
            own = self._keys[1][:, None].expand(*index.shape, -1).flatten(0, 2)
            flat = map_leaves(lambda leaf: leaf.flatten(0, 2), x)
            moved = augment.apply(flat, index.flatten(), own)
            return map_leaves(lambda leaf: leaf.unflatten(0, index.shape), moved)
        changed = []
        for i, seed in enumerate(self._seeds):
            self._generator.manual_seed(derive_seed(seed, "augment", step))
            changed.append(augment(take(take(x, 0), i), self._generator))
        every = join(changed, torch.stack, "the augmented batches of the members")
        return map_leaves(lambda leaf: leaf[None], every)


def _same_start(several: Inputs, one: Inputs) -> bool:
    """Whether the first of several steps' inputs are those of `one` step."""
    same: list[bool] = []
    map_leaves(lambda a, b: same.append(torch.equal(a[:1], b)), several, one)
    return all(same)

"""Augmentations: batches changed at random, on the device they are on.

A function of a batch and a generator draws for the batch; an `ItemAugmentation` draws for each item, from its number,
so that an item is changed alike in any batch, on any device, and in an ensemble with the batches of all members at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from ntkscope.core import UsageError, derive_seed
from ntkscope.core.checked import CountOrZero
from ntkscope.data.transforms._items import keyed_draws
from ntkscope.data.transforms.translation import Fill, shift_images


class ItemAugmentation(ABC):
    """What happens to an item depends on its position in the training part, the run's seed and the epoch alone. A subclass is
    final."""

    @abstractmethod
    def keys(self, seed: int, epoch: int) -> tuple[int, ...]:
        """The random streams of a run with `seed` in one epoch, each a 63-bit number."""

    @abstractmethod
    def apply(self, x: Tensor, items: Int64[Tensor, " n"], keys: Int64[Tensor, "n j"]) -> Tensor:
        """The inputs `x` of some items, changed; `keys` are those of the run each belongs to."""


@dataclass(frozen=True)
class Translate(ItemAugmentation):
    """Every image moved by (down, right), each uniform over -max_shift … max_shift and drawn anew each epoch; `fill` enters.

    Whole pixels, gathered on the device the images are on. In epoch e of a run with seed s an item moves as
    `ns.data.translate(part, max_shift, derive_seed(s, "augment"), epoch=e)` moves the item at its position (that transform
    prefers a part's own item numbers, `extras["index"]`). Reference: Samarin et al. (2022), section 4.1.

    Examples:
        >>> x, still = torch.rand(2, 1, 4, 4), Translate(0)
        >>> still.apply(x, torch.arange(2), torch.tensor([still.keys(0, 0)] * 2)).equal(x)
        True
    """

    max_shift: CountOrZero = 7
    fill: Fill = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.fill, Sequence):
            object.__setattr__(self, "fill", tuple(self.fill))

    def keys(self, seed: int, epoch: int) -> tuple[int, ...]:
        own = derive_seed(seed, "augment")
        return tuple(derive_seed(own, "translate", epoch, axis) for axis in ("down", "right"))

    def apply(self, x: Tensor, items: Int64[Tensor, " n"], keys: Int64[Tensor, "n j"]) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 4 or min(x.shape[2:]) <= self.max_shift:
            got = f"inputs of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise UsageError(
                f"Translate(max_shift={self.max_shift}) got {got}; expected images (n, channels, height, width) of more than"
                f" {self.max_shift} pixels each way"
            )
        shift = keyed_draws(items[:, None], 2 * self.max_shift + 1, keys) - self.max_shift  # (n, 2)
        return shift_images(x, shift, self.fill)


@dataclass(frozen=True)
class CropFlip:
    """Pad every image by `padding`, cut a window of the old size at random, mirror it with probability one half.

    Examples:
        >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
        >>> CropFlip(padding=0, flip=False)(x, torch.Generator()).equal(x)
        True
    """

    padding: CountOrZero = 4
    flip: bool = True
    fill: Literal["reflect", "zero"] = "reflect"

    def __call__(self, x: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        n, channels, height, width = x.shape
        pad, device = self.padding, x.device
        padded = functional.pad(x, (pad,) * 4, mode="reflect" if self.fill == "reflect" else "constant") if pad else x
        top, left = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator, device=device)
        rows = top + torch.arange(height, device=device)  # (n, h)
        columns = left + torch.arange(width, device=device)  # (n, w)
        if self.flip:
            mirrored = torch.rand(n, 1, generator=generator, device=device) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        item = torch.arange(n, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[None, :, None, None]
        return padded[item, channel, rows[:, None, :, None], columns[:, None, None, :]]

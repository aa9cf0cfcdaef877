"""Augmentations: batches changed at random, on the device they are on, from a given generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class CropFlip:
    """Pad every image by `padding`, cut a window of the old size at random, mirror it with probability one half.

    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> CropFlip(padding=0, flip=False)(x, torch.Generator()).equal(x)
    True
    """

    padding: int = 4
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

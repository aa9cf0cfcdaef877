"""Random translation: each image shifted by its own few pixels, the same whichever batch or subset it is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, overload

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, derive_seed
from ntkscope.core.arguments import whole
from ntkscope.core.checked import CountOrZero, Number
from ntkscope.data.transforms._items import images_of, item_draws, item_numbers

Fill: TypeAlias = Number | Sequence[Number]  # one number, or one per channel


def shift_images(
    x: Float[Tensor, "n channels height width"], shift: Int64[Tensor, "n 2"], fill: Fill = 0.0
) -> Float[Tensor, "n channels height width"]:
    """Move the content of image i down by `shift[i, 0]` and right by `shift[i, 1]` pixels; what enters is `fill`.

    Examples:
        >>> shift_images(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([[0, 1]])).tolist()
        [[[[0.0, 1.0], [0.0, 3.0]]]]
    """
    n, channels, height, width = x.shape
    rows = torch.arange(height, device=x.device) - shift[:, :1]  # (n, height): the row each output row comes from
    columns = torch.arange(width, device=x.device) - shift[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    source = x.movedim(1, -1)[
        torch.arange(n, device=x.device)[:, None, None],
        rows.clamp(0, height - 1)[:, :, None],
        columns.clamp(0, width - 1)[:, None, :],
    ].movedim(-1, 1)
    background = torch.as_tensor(fill, dtype=x.dtype, device=x.device).reshape(-1, 1, 1)
    if len(background) not in (1, channels):
        raise UsageError(f"fill has {len(background)} numbers; expected 1 or {channels}, one per channel")
    return torch.where(inside[:, None], source, background).contiguous()


@overload
def translate(data: Part, max_shift: int = ..., seed: int = ..., *, epoch: int = ..., fill: Fill = ...) -> Part: ...
@overload
def translate(data: Split, max_shift: int = ..., seed: int = ..., *, epoch: int = ..., fill: Fill = ...) -> Split: ...
def translate(
    data: Part | Split, max_shift: CountOrZero = 7, seed: int = 0, *, epoch: CountOrZero = 0, fill: Fill = 0.0
) -> Part | Split:
    """Every image moved by (down, right), each uniform over -max_shift … max_shift, on a canvas of the same size.

    An image's shift depends on `seed`, `epoch` and its number alone — `extras["index"]` where the part has it, else
    its position — so subsets and batches agree; a new `epoch` draws anew. `extras["shift"]` (n, 2) says what was done.
    A `Split` has its parts shifted independently of each other. `fill` is the background in the
    images' own units (black, normalised, is -mean / std).
    Cost: O(pixels). Reference: Samarin et al. (2022), section 4.1 (up to 7 pixels of MNIST's 28; they leave open
    whether shifts are redrawn every epoch).

    Examples:
        >>> part = Part(torch.rand(4, 1, 6, 6), torch.zeros(4))
        >>> translate(part, 2).extras["shift"].abs().max() <= 2
        tensor(True)
    """
    if isinstance(data, Split):
        parts = {"train": data.train, "validation": data.validation, "test": data.test}
        moved = {
            name: part and translate(part, max_shift, derive_seed(seed, name), epoch=epoch, fill=fill)
            for name, part in parts.items()
        }
        return data.replace(**moved)
    x, numbers = images_of(data), item_numbers(data)
    whole(max_shift, "max_shift", low=0, high=min(x.shape[2:]) - 1)
    draws = [item_draws(numbers, 2 * max_shift + 1, seed, "translate", epoch, axis) for axis in ("down", "right")]
    shift = torch.stack(draws, dim=1) - max_shift
    moved_x = torch.cat([shift_images(a, b, fill) for a, b in zip(x.split(4096), shift.split(4096))]) if len(x) else x
    return Part(moved_x, data.y, {**data.extras, "shift": shift})

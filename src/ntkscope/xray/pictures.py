"""Pictures of items for a page: thumbnails, and what of the training items a layer's directions pick out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn.functional import interpolate

from ntkscope.tangent.matrices.projections import Projector, Strongest

MASS = 0.95  # share of the squared gradient, along either side, that the shown patch holds
SIDE = 32  # pixels of a shown patch
LARGEST = 48  # pixels per side


@dataclass(frozen=True, eq=False)
class PickedOut:
    """For k directions the m training items that project most on each; of images the patch that the projection reacts to,
    of texts the position."""

    items: Int[np.ndarray, "k m"]
    signs: Float[Tensor, " k"]
    patches: UInt8[np.ndarray, "k m h w c"] | None = None
    size: tuple[int, ...] = ()
    tokens: Int[np.ndarray, "k m"] | None = None


def picked_out(
    projector: Projector,
    name: str,
    outward: Float[Tensor, "k out"],
    found: Strongest,
    kind: str,
    lightness: tuple[Tensor, Tensor] | None,
) -> PickedOut:
    """What directions `v = Wᵀ u`, given by the rows u of `outward`, pick out. `lightness`: the range of an image's channels."""
    items = found.samples.numpy()
    if kind == "vector":
        return PickedOut(items, found.signs)
    k, m = found.samples.shape
    rows, samples, positions = outward.repeat_interleave(m, 0), found.samples.flatten(), found.positions.flatten()
    gradient = projector.reactions(name, rows, samples, positions).double().cpu()
    if kind == "text":
        return PickedOut(items, found.signs, tokens=gradient.square().sum(-1).argmax(-1).reshape(k, m).numpy())
    strength = gradient.square().sum(1)  # (r, h, w)
    boxes = [box(each) for each in strength]
    height = max(bottom - top for top, bottom, _, _ in boxes)
    width = max(right - left for _, _, left, right in boxes)
    pictures = projector.batch.tensors()[0][samples].detach().cpu()
    cut = torch.stack([_cut(each, place, height, width) for each, place in zip(pictures, boxes)])
    low, high = lightness if lightness is not None else (cut.amin((0, 2, 3)), cut.amax((0, 2, 3)))
    shown = thumbnails(cut, low, high, largest=SIDE)
    return PickedOut(items, found.signs, shown.reshape(k, m, *shown.shape[1:]), (height, width))


def box(strength: Float[Tensor, "h w"]) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of the smallest region that holds nearly all of the reaction along either side.

    >>> image = torch.zeros(6, 8)
    >>> image[2:4, 5:8] = 1.0
    >>> box(image)
    (2, 4, 5, 8)
    """
    return (*_range(strength.sum(1)), *_range(strength.sum(0)))


def _range(mass: Float[Tensor, " d"]) -> tuple[int, int]:
    total = float(mass.sum())
    if not total > 0:
        return 0, len(mass)
    running = mass.cumsum(0) / total
    tail = (1 - MASS) / 2
    first = int((running <= tail).sum())
    last = int((running < 1 - tail).sum())
    return min(first, last), last + 1


def _cut(picture: Float[Tensor, "c h w"], place: tuple[int, int, int, int], height: int, width: int) -> Tensor:
    """The region, grown on all sides to the common size and moved where it would leave the picture."""
    top, bottom, left, right = place
    y = min(max(0, (top + bottom - height) // 2), picture.shape[1] - height)
    x = min(max(0, (left + right - width) // 2), picture.shape[2] - width)
    return picture[:, y : y + height, x : x + width]


def thumbnails(x: Tensor, low: Tensor, high: Tensor, largest: int = LARGEST) -> UInt8[np.ndarray, "n h w c"]:
    """(n, c, h, w) as bytes (n, h, w, c), `low` and `high` of each channel as black and white; large images shrunk.

    >>> x = torch.tensor([0.0, 1.0]).reshape(1, 1, 1, 2)
    >>> thumbnails(x, torch.zeros(1), torch.ones(1)).flatten().tolist()
    [0, 255]
    """
    span = (high - low).clamp_min(1e-12)
    scaled = ((x.detach().float().cpu() - low[:, None, None]) / span[:, None, None]).clamp(0, 1)
    longest = max(scaled.shape[2:])
    if longest > largest:
        factor = largest / longest
        size = [max(1, round(side * factor)) for side in scaled.shape[2:]]
        scaled = interpolate(scaled, size=size, mode="area")
    return (scaled * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def channel_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and largest value of each channel."""
    flat = x.detach().float().cpu().transpose(0, 1).flatten(1)
    return flat.amin(1), flat.amax(1)

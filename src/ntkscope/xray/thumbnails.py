"""Thumbnails: images as bytes, small enough for a page."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import interpolate

LARGEST = 48  # pixels per side


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

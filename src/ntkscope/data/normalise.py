"""Standard normalisation of images: from bytes to `x = (byte/255 - mean) / std`, one mean and std per channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from ntkscope.core import UsageError

MeanStd: TypeAlias = tuple[Sequence[float], Sequence[float]]
Normalise: TypeAlias = str | tuple[float | Sequence[float], float | Sequence[float]] | None

IMAGENET: MeanStd = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _per_channel(value: float | Sequence[float], channels: int, what: str) -> Tensor:
    values = [float(value)] * channels if isinstance(value, (int, float)) else [float(v) for v in value]
    if len(values) != channels or not all(map(math.isfinite, values)):
        raise UsageError(
            f"normalise: the {what} is {value!r}; expected one finite number, or {channels}, one per channel"
        )
    return torch.tensor(values, dtype=torch.float32)


def constants(
    how: Normalise, channels: int, standard: MeanStd
) -> tuple[Float32[Tensor, " channels"], Float32[Tensor, " channels"]]:
    """The mean and standard deviation that `how` means for images of `channels` channels.

    `"standard"`: `standard`, those of the data set; `"imagenet"`: ImageNet's, which pretrained networks need;
    `"unit"`: values in [0, 1]; `None`: the bytes 0 ... 255 as numbers; or a pair `(mean, std)`.

    >>> constants("unit", 1, ((0.1307,), (0.3081,)))
    (tensor([0.]), tensor([1.]))
    """
    if how == "standard":
        pair: tuple[float | Sequence[float], float | Sequence[float]] = standard
    elif how == "imagenet":
        if channels != 3:
            raise UsageError(
                f"normalise='imagenet' is for 3 channels, these images have {channels}; use 'standard' or (mean, std)"
            )
        pair = IMAGENET
    elif how == "unit":
        pair = (0.0, 1.0)
    elif how is None:
        pair = (0.0, 1 / 255)
    elif isinstance(how, tuple) and len(how) == 2:
        pair = how
    else:
        raise UsageError(f"got normalise={how!r}; expected 'standard', 'imagenet', 'unit', None or a pair (mean, std)")
    mean, std = _per_channel(pair[0], channels, "mean"), _per_channel(pair[1], channels, "std")
    if not bool((std > 0).all()):
        raise UsageError(f"normalise: the std is {pair[1]!r}; expected positive numbers")
    return mean, std


def to_float(
    images: UInt8[np.ndarray, "n c h w"], mean: Float32[Tensor, " c"], std: Float32[Tensor, " c"]
) -> Float32[Tensor, "n c h w"]:
    """`(images/255 - mean) / std` in single precision; `images` must be writable, 4 bytes are made of each of theirs.

    >>> to_float(np.full((1, 1, 1, 1), 255, np.uint8), *constants("standard", 1, ((0.5,), (0.25,)))).item()
    2.0
    """
    x = torch.from_numpy(images).to(torch.float32)
    return x.div_(255).sub_(mean[:, None, None]).div_(std[:, None, None])

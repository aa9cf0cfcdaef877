"""Convolutions of images with their channels innermost, which tensor cores read without rearranging them first.

Inputs and weights are converted for the call alone, so parameters stay as they are; what follows a convolution keeps the
format by itself. The numbers are the same up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NAMES = ("input", "weight")


def called(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`function(*args, **kwargs)`; a two-dimensional convolution of a batch with its channels innermost."""
    if function is F.conv2d:
        given = {**dict(zip(NAMES, args)), **{name: kwargs[name] for name in NAMES if name in kwargs}}
        if all(isinstance(given.get(name), Tensor) and given[name].dim() == 4 for name in NAMES):
            inner = {name: value.contiguous(memory_format=torch.channels_last) for name, value in given.items()}
            args = tuple(inner[NAMES[k]] if k < len(NAMES) else value for k, value in enumerate(args))
            return function(*args, **{name: inner.get(name, value) for name, value in kwargs.items()})
    if function == Tensor.view:
        try:
            return function(*args, **kwargs)
        except RuntimeError:  # of a tensor that would be contiguous had its channels not been moved
            return function(args[0].contiguous(), *args[1:], **kwargs)
    return function(*args, **kwargs)

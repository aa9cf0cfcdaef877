"""One execution mode for all blocks, wherever and however few they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from ntkscope.tangent.blocks import execution as execution
from ntkscope.tangent.blocks import norm as quick_norm
from ntkscope.tangent.blocks import split_products
from ntkscope.tangent.blocks.execution import PLAIN, Execution, ExecutionMode

WAYS = {
    "plain": PLAIN,
    "channels last": ExecutionMode(channels_last=True),
    "together": ExecutionMode(together=16),
    "two together": ExecutionMode(together=2),
    "channels last, together": ExecutionMode(channels_last=True, together=16),
    "flipped": ExecutionMode(flipped=True),
    "all": ExecutionMode(channels_last=True, together=16, flipped=True),
    "split": ExecutionMode(flipped=True, split=True),
    "split, together": ExecutionMode(together=16, flipped=True, split=True),
}


@contextmanager
def harvested(mode: ExecutionMode, block: int = 0) -> Iterator[None]:
    """Every engine made inside runs its blocks this way, in blocks of at most so many samples (0: as planned), and norms as on
    a GPU; what would be split there is multiplied plainly."""

    class Forced(Execution):
        def longest(self, samples: int) -> int:
            return block

    def of(device: Any, convolutions: bool, heads: int, certified: bool, splits: bool) -> Execution:
        return Forced(convolutions=convolutions, heads=heads, mode=mode)

    plainly: dict[str, Any] = {"product": product, "convolved": convolved, "WORTH": -1.0, "LEAST": 1}
    plainly |= {"NUMBERS": (torch.float32, torch.float64), "DEVICES": ("cpu", "cuda")}
    with (
        patch.object(Execution, "of", of),
        patch.object(quick_norm, "DEVICES", ("cpu", "cuda")),
        patch.multiple(split_products, **plainly),
    ):
        yield


def product(left: Tensor, right: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    values = left @ right.transpose(1, 2) + (0 if bias is None else bias)
    return values if out is None else out.copy_(values)


def convolved(x: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
    return torch.nn.functional.conv2d(x, weight, padding=list(padding))


@contextmanager
def compared() -> Iterator[None]:
    """Ways are compared on the CPU too."""
    before = execution.DEVICES
    execution.DEVICES = (*before, "cpu")
    try:
        yield
    finally:
        execution.DEVICES = before

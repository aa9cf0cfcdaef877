"""One execution mode for all blocks, wherever and however few they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ntkscope.tangent.blocks import execution as execution
from ntkscope.tangent.blocks import norm as quick_norm
from ntkscope.tangent.blocks.execution import PLAIN, Execution, ExecutionMode

WAYS = {
    "plain": PLAIN,
    "channels last": ExecutionMode(channels_last=True),
    "together": ExecutionMode(together=16),
    "two together": ExecutionMode(together=2),
    "channels last, together": ExecutionMode(channels_last=True, together=16),
    "flipped": ExecutionMode(flipped=True),
    "all": ExecutionMode(channels_last=True, together=16, flipped=True),
}


@contextmanager
def harvested(mode: ExecutionMode, block: int = 0) -> Iterator[None]:
    """Every engine made inside runs its blocks this way, in blocks of at most so many samples (0: as planned), and norms as on
    a GPU."""

    class Forced(Execution):
        def longest(self, samples: int) -> int:
            return block

    def of(device: Any, convolutions: bool, heads: int, certified: bool) -> Execution:
        return Forced(convolutions=convolutions, heads=heads, mode=mode)

    with patch.object(Execution, "of", of), patch.object(quick_norm, "DEVICES", ("cpu", "cuda")):
        yield


@contextmanager
def compared() -> Iterator[None]:
    """Ways are compared on the CPU too."""
    before = execution.DEVICES
    execution.DEVICES = (*before, "cpu")
    try:
        yield
    finally:
        execution.DEVICES = before

"""One way of harvesting blocks, wherever and however few they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ntkscope.tangent import harvest, quick_norm
from ntkscope.tangent.harvest import PLAIN, Way

WAYS = {
    "plain": PLAIN,
    "channels last": Way(channels_last=True),
    "together": Way(together=16),
    "two together": Way(together=2),
    "channels last, together": Way(channels_last=True, together=16),
    "flipped": Way(flipped=True),
    "all": Way(channels_last=True, together=16, flipped=True),
}


@contextmanager
def harvested(way: Way, block: int = 0) -> Iterator[None]:
    """Every engine made inside runs its blocks this way, in blocks of at most so many samples (0: as planned), and norms as on
    a GPU."""
    before = harvest.FORCED, harvest.FORCED_BLOCK, quick_norm.DEVICES
    harvest.FORCED, harvest.FORCED_BLOCK, quick_norm.DEVICES = way, block, ("cpu", "cuda")
    try:
        yield
    finally:
        harvest.FORCED, harvest.FORCED_BLOCK, quick_norm.DEVICES = before


@contextmanager
def compared() -> Iterator[None]:
    """Ways are compared on the CPU too."""
    before = harvest.DEVICES
    harvest.DEVICES = (*before, "cpu")
    try:
        yield
    finally:
        harvest.DEVICES = before

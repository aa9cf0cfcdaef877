"""The cut: how a kernel on disk is divided into tiles and a tile into blocks.

It is chosen once, when the store is made, and kept there: the same tile is then computed by the same sums whoever does
it, whenever, and with whatever memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isqrt
from typing import Any

from ntkscope.core import MemoryBudgetError, StoreError
from ntkscope.core.sizes import show_bytes
from ntkscope.tangent.plan import Footprint

LARGEST, CUDA_LARGEST = 2048, 8192  # rows of a tile: what a run that is killed loses, and what a reader holds
WORK, CUDA_WORK = 2**40, 2**52  # multiply-adds of a tile: below a minute on two cores, on a GPU
WORKSPACE, CUDA_WORKSPACE, LEAST_WORKSPACE = 2**24, 2**32, 2**21
COPIES = 3  # of a tile while it is made and written


@dataclass(frozen=True)
class Cut:
    """Tiles of `size` samples a side, harvested in blocks of `block`, with `workspace` bytes for products."""

    size: int
    block: int
    workspace: int

    def needs(self, each: Footprint, workers: int = 1) -> int:
        """Bytes: the rows' features, the tile, and for every worker a block that passes by and its products."""
        tile = COPIES * self.size**2 * each.pairs * each.itemsize
        passing = self.block * each.passing + each.tile(self.size, self.block) + self.workspace + each.worker
        return self.size * each.feature + tile + workers * passing

    def workers(self, each: Footprint, memory: int, most: int) -> int:
        """How many blocks may pass by at once; an error that says the smallest budget where not even one may."""
        if each.slack * memory < self.needs(each):
            least = int(self.needs(each) / each.slack * 1.01) + 1
            raise MemoryBudgetError(
                f"memory={show_bytes(memory)} came for tiles of {self.size} samples, harvested in blocks of {self.block}; the"
                f" smallest budget that works is {show_bytes(least * 1.001)} ({least} bytes): raise memory="
                + (", or begin a new store, which chooses smaller tiles" if self.size > 1 else "")
            )
        fitting = [count for count in range(2, most + 1) if self.needs(each, count) <= each.slack * memory]
        return max(fitting, default=1)

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, where: str) -> Cut:
        """A cut that a store kept; anything else is refused."""
        names = ("size", "block", "workspace")
        if not isinstance(values, Mapping) or not all(
            isinstance(values.get(name), int) and values[name] >= 1 for name in names
        ):
            raise StoreError(
                f"{where} does not say how its tiles were cut ({values!r} came); expected one written by ns.kernel or"
                " `ntkscope kernel`: choose another folder"
            )
        return cls(*(values[name] for name in names))


def make_cut(n: int, m: int | None, each: Footprint, memory: int, workers: int, rows: int = 1) -> Cut:
    """The largest tiles that fit `memory` with `workers` at work, of about the same size; `rows` of the matrix a sample.

    Where little fits, blocks get smaller before tiles do: a block is harvested once for every row of tiles.
    """
    side = max(n, m or n)
    cap = (CUDA_LARGEST if each.cuda else LARGEST) // rows
    work = isqrt(int((CUDA_WORK if each.cuda else WORK) / max(1.0, each.pair_cost)))
    wanted = max(1, min(side, cap, max(work, each.largest_block)))
    usual = CUDA_WORKSPACE if each.cuda else WORKSPACE
    available = each.slack * memory
    workspace = int(max(LEAST_WORKSPACE, min(available / 8, usual)))
    best = Cut(1, 1, LEAST_WORKSPACE)
    best.workers(each, memory, 1)  # an error where even this does not fit
    for count in range(max(1, workers), 0, -1):
        for share in (0.4, 0.15):
            block = max(1, min(each.largest_block, side, int((available - workspace) * share / count / each.passing)))
            size = _largest(block, workspace, each, available, count, wanted)
            if size > best.size:
                best = Cut(size, min(block, size), workspace)
            if best.size == wanted:
                break
        if best.size >= min(wanted, each.largest_block):  # a second worker is worth more than the last sample
            break
    return _even(best, side)


def _largest(block: int, workspace: int, each: Footprint, available: float, workers: int, wanted: int) -> int:
    """The largest tile up to `wanted` that fits, by halving; 0 when none does."""
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if Cut(middle, min(block, middle), workspace).needs(each, workers) <= available:
            low = middle
        else:
            high = middle - 1
    return low


def _even(cut: Cut, side: int) -> Cut:
    """As many tiles of about the same size instead of whole ones and a rest, whole blocks where that is no more."""
    even = -(-side // -(-side // cut.size))
    whole = -(-even // cut.block) * cut.block
    return Cut(whole if whole <= min(cut.size, side) else even, cut.block, cut.workspace)

"""Tiles of an infinite-width kernel for a store.

A tile is computed in parts, each by one thread and each with a fixed share of the memory, so that its bits do not depend on
how many cores there are or on the memory of a later run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ntkscope.core.errors import StoreError
from ntkscope.core.identity import DIGITS, Answers, identity
from ntkscope.core.machine.threads import share
from ntkscope.core.numerics import numerics
from ntkscope.core.sizes import over_budget
from ntkscope.core.types import fingerprint
from ntkscope.infinite.pairs import Network
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.grams.tiling import Grid, TileValues
from ntkscope.storage.kernel_store import KernelStore

LARGEST = 2048  # inputs of a tile
PARTS = 4  # down and across, of a tile on a CPU
COPIES = 3  # of a tile while it is made and written

Compute: TypeAlias = Callable[..., Mapping[str, Gram]]
"""`compute(network, left, right, symmetric, kinds, memory, show)`: the kernels of two sets of inputs in memory."""


@dataclass(frozen=True)
class PairCut:
    """Tiles of `size` inputs per side, in `parts` × `parts` parts, each with `memory` bytes."""

    size: int
    parts: int
    memory: int

    def workers(self, memory: int, itemsize: int, most: int) -> int:
        """How many parts may be computed at once; an error if not even one may."""
        result = COPIES * self.size**2 * itemsize
        least = result + self.memory
        if memory < least:
            remedy = "raise memory=, or start a new store, which chooses its own tiles"
            raise over_budget(memory, least, f"for tiles of {self.size} inputs", remedy)
        return max(1, min(most, (memory - result) // self.memory))


def make_cut(network: Network, samples: int, memory: int, like: Tensor) -> PairCut:
    """Tiles as large as the blocks the network works on, three quarters of the memory shared among the parts at work."""
    threads = torch.get_num_threads() if like.device.type == "cpu" else 1
    size = min(samples, LARGEST, max(16, math.isqrt(memory // (4 * COPIES * like.element_size()))))
    share = max(1, (memory - COPIES * size**2 * like.element_size()) // threads)
    block, _ = network.plan(size, share, like)  # an error where nothing fits
    return PairCut(min(size, block), 1 if like.device.type != "cpu" else min(PARTS, size), share)


def found_cut(store: KernelStore) -> PairCut:
    """The cut a store was made with."""
    cut = store.labels.get("cut")
    names = ("size", "parts", "memory")
    if not isinstance(cut, Mapping) or not all(isinstance(cut.get(name), int) and cut[name] >= 1 for name in names):
        raise StoreError(
            f"{store.url} does not say how its tiles were cut (got {cut!r}); expected a store of an infinite-width kernel:"
            " choose another folder"
        )
    return PairCut(*(cut[name] for name in names))


@dataclass(frozen=True, eq=False)
class PairTiles:
    """A `TileSource` of one infinite-width kernel between `left` and `right` (None: `left` with itself)."""

    network: Network
    left: Tensor
    right: Tensor | None
    kind: str
    cut: PairCut
    memory: int
    compute: Compute
    device: str

    @property
    def grid(self) -> Grid:
        m = len(self.left if self.right is None else self.right)
        return Grid(len(self.left), m, self.cut.size, symmetric=self.right is None)

    @property
    def dtype(self) -> torch.dtype:
        return self.left.dtype

    @property
    def labels(self) -> dict[str, Any]:
        return {
            "name": f"infinite-{self.kind}",
            "rows": "samples",
            "outputs": 1,
            "cut": {"size": self.cut.size, "parts": self.cut.parts, "memory": self.cut.memory},
            "meta": {
                "dtype": str(self.dtype).removeprefix("torch."),
                "parametrization": self.network.parametrization,
                "torch": ".".join(torch.__version__.split(".")[:2]),
            },
        }

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        cut = self.cut
        return {
            "kernel": f"infinite-{self.kind}",
            "network": identity(self.network),
            "parametrization": self.network.parametrization,
            "row inputs": fingerprint(self.left)[:DIGITS],
            "column inputs": "the same inputs" if self.right is None else fingerprint(self.right)[:DIGITS],
            "computed in": str(self.dtype).removeprefix("torch."),
            "computed on": torch.device(self.device).type,
            "cut": f"tiles of {cut.size} inputs, {cut.parts} × {cut.parts} parts, {cut.memory} bytes each",
            "ntkscope": numerics("infinite"),
        }

    def __getstate__(self) -> dict[str, Any]:
        """Without its fingerprint, which is recomputed from the versions on the receiving side."""
        right = None if self.right is None else self.right.cpu()
        kept = {name: value for name, value in vars(self).items() if name != "fingerprint"}
        return kept | {"left": self.left.cpu(), "right": right}

    def answers(self) -> Answers:
        """The kernel of a few of the row inputs."""

        def ask(items: list[int]) -> Tensor:
            few = self.left[items].to(self.device)
            with torch.no_grad():
                made = self.compute(self.network, few, few, True, (self.kind,), self.cut.memory, False)
            return made[self.kind].dense()

        return Answers.of(ask, len(self.left), self.device)

    def tile(self, i: int, j: int) -> TileValues:
        """Tile (i, j), and `k(x, x)` of its inputs where the network knows them without pairs."""
        grid, own = self.grid, self.right is None and i == j
        others = self.left if self.right is None else self.right
        left, right = (x.to(self.device) for x in (self.left[grid.rows(i)], others[grid.columns(j)]))
        values = torch.empty(len(left), len(right), dtype=self.dtype)
        sides = [torch.full((len(x),), torch.nan, dtype=torch.float64) for x in (left, right)]
        step = -(-max(len(left), len(right)) // self.cut.parts)

        def work(_: int, at: tuple[int, int]) -> None:
            rows, columns = slice(at[0], at[0] + step), slice(at[1], at[1] + step)
            same = own and at[0] == at[1]
            one = left[rows]
            with torch.no_grad():
                made = self.compute(
                    self.network, one, one if same else right[columns], same, (self.kind,), self.cut.memory, False
                )[self.kind]
            part = made.dense().cpu()
            values[rows, columns] = part
            if own and not same:
                values[columns, rows] = part.T
            known = made.row_diagonal, made.column_diagonal
            for side, given, place, first in zip(sides, known, (rows, columns), (at[1], at[0])):
                if self.right is not None and given is not None and first == 0:
                    side[place] = given.double().cpu()

        down, across = (range(0, len(x), step) for x in (left, right))
        jobs = [(a, b) for a, b in itertools.product(down, across) if not own or a <= b]
        if left.device.type == "cpu":
            most = self.cut.workers(self.memory, left.element_size(), torch.get_num_threads())
            share(range(most), jobs, work)
        else:
            for at in jobs:
                work(0, at)
        if self.right is None:
            diagonal = values.diagonal().double() if own else None
            return TileValues(values, diagonal, diagonal)
        row, column = (None if bool(side.isnan().any()) else side for side in sides)
        return TileValues(values, row, column)

"""Infinite-width kernels in memory: blocks of inputs whose variances are held, and tiles of pairs of them on all cores."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.core.machine.threads import spread
from ntkscope.infinite.field import Block
from ntkscope.infinite.pairs import Network
from ntkscope.linalg.grams.tiling import Grid, Place, TileValues

KINDS = ("nngp", "ntk")


class PairBlocks:
    """The kernels of `kinds` between `left` and `right` (None: `left` with itself), one pair of blocks per tile.

    The first of `kinds` are the values of a tile, the others its planes.
    """

    def __init__(
        self, network: Network, left: Tensor, right: Tensor | None, kinds: tuple[str, ...], memory: int
    ) -> None:
        self.network, self.left, self.right, self.kinds, self.memory = network, left, right, kinds, memory
        others = left if right is None else right
        block, self.size = network.plan(max(len(left), len(others)), memory, left)
        self.grid = Grid(len(left), len(others), block, symmetric=right is None)
        self.dtype, self.device = left.dtype, left.device
        self._row: tuple[int, Block] | None = None
        self._sides: list[list[list[Tensor]]] = [[], []]

    @property
    def pairs(self) -> int:
        """How many pairs of inputs are computed."""
        parts = (self.grid.computed(i, j) for i, j in self.grid)
        return sum((rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in parts)

    def tile(self, i: int, j: int, place: Place | None = None) -> TileValues:
        """Tile (i, j) of all kinds, written into `place`; tiles must be requested in the order of the grid."""
        assert place is not None
        one = self._block(i)
        own = self.right is None and i == j
        two = (
            one if own else self.network.block((self.left if self.right is None else self.right)[self.grid.columns(j)])
        )
        if self.right is not None and i == 0:
            self._sides[1].append(two.diagonal)
        out = {self.kinds[0]: place.values, **place.planes}
        fill, lock = partial(_fill, self.network, out, one, two), threading.Lock()

        def work(job: Job) -> None:
            fill(job)
            with lock:
                rows, columns = job.rows, job.columns
                mirrored = own and rows != columns
                place.advance((rows.stop - rows.start) * (columns.stop - columns.start) * (2 if mirrored else 1))

        for jobs in _strips(self.network, one, two, self.size, self.memory):
            spread(jobs, work, self.device)
        if own and self.network.knows_diagonal:
            for kind, exact in zip(KINDS, one.diagonal):
                if kind in out:
                    out[kind].diagonal().copy_(exact)
        return TileValues(place.values, planes=place.planes)

    def diagonals(self, kind: str) -> tuple[Tensor | None, Tensor | None]:
        """`k(x, x)` of the row and of the column inputs, where the network knows them without pairs."""
        if not self.network.knows_diagonal:
            return None, None
        found = [[parts[KINDS.index(kind)] for parts in side] for side in self._sides]
        row, column = (torch.cat(parts) if parts else None for parts in found)
        return row, column

    def _block(self, i: int) -> Block:
        """The row inputs and their variances, kept until another row is requested."""
        if self._row is None or self._row[0] != i:
            self._row = None  # makes room
            self._row = i, self.network.block(self.left[self.grid.rows(i)])
            self._sides[0].append(self._row[1].diagonal)
        return self._row[1]


@dataclass(frozen=True)
class Job:
    """One tile: where, and the covariances of its inputs where they were computed with those of others."""

    rows: slice
    columns: slice
    start: Tensor | None = None


def _strips(network: Network, one: Block, two: Block, tile: int, memory: int) -> Iterator[list[Job]]:
    """Tiles in groups. Products of vectors are done for a strip of tiles at once, by a matrix product on all cores.

    Threads that work on a tile each would not be alone in it: some libraries of matrix products have threads of their own.
    """
    places = list(_tiles(len(one), len(two), tile, two is one))
    if network.shape.spatial:
        yield [Job(*place) for place in places]
        return
    wide = max(1, memory // (8 * tile * tile * one.x.element_size()))
    for _, strip in itertools.groupby(places, key=lambda place: place[0].start):
        rest = list(strip)
        while rest:
            now, rest = rest[:wide], rest[wide:]
            rows, first, last = now[0][0], now[0][1].start, now[-1][1].stop
            start = network.start(one[rows], two[slice(first, last)])
            yield [Job(*at, start[:, at[1].start - first : at[1].stop - first]) for at in now]


def _fill(network: Network, out: dict[str, Tensor], one: Block, two: Block, job: Job) -> None:
    """One tile, and its mirror image where both sides are the same inputs."""
    rows, columns = job.rows, job.columns
    for kind, part in zip(KINDS, network.tile(one[rows], two[columns], job.start)):
        if kind not in out:
            continue
        assert part is not None
        refuse_not_finite(part, kind)
        values = out[kind]
        if two is one and rows == columns:
            part = (part + part.T) / 2
        values[rows, columns] = part
        if two is one and rows != columns:
            values[columns, rows] = part.T


def refuse_not_finite(values: Tensor, kind: str) -> None:
    """A sum is one pass over what is in cache; it is finite unless an entry is not, or it overflows."""
    if bool(torch.isfinite(values.detach().sum())) or bool(torch.isfinite(values.detach()).all()):
        return
    i, j = (int(index) for index in (~torch.isfinite(values.detach())).nonzero()[0])
    raise NumericalError(
        f"the {kind} of inputs {i} and {j} (of their tile) is {float(values[i, j])}; expected a finite number: inputs or"
        f" weights are so large, or so small, that squares leave the range of {str(values.dtype).removeprefix('torch.')}."
        " Scale the inputs"
    )


def _tiles(n: int, m: int, tile: int, triangle: bool) -> Iterator[tuple[slice, slice]]:
    for a in range(0, n, tile):
        for b in range(a if triangle else 0, m, tile):
            yield slice(a, min(a + tile, n)), slice(b, min(b + tile, m))

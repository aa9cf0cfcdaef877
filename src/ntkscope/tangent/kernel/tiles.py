"""Tiles of a kernel that is a product of features: those of a tile's rows stay while its columns pass by in blocks.

In memory a tile is as many rows as may stay, with all columns; for a store a square. Where the heads are too many to be
held at once, they are taken in groups: a trace is a sum over them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import Certificate, NtkscopeError
from ntkscope.core.machine.threads import recruit, share
from ntkscope.linalg.grams.tiling import Grid, Place, TileValues
from ntkscope.tangent.blocks.features import accumulate
from ntkscope.tangent.certify.auditor import GraphMismatch
from ntkscope.tangent.kernel.by_layers import ALIGNED, FactorCache, Layered
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.kernel.products import (
    Features,
    Maker,
    cut,
    feature_pairs,
    flat,
    hold_block,
    mirror,
    passing,
    ranges,
    write,
)
from ntkscope.tangent.model.batches import Batch

SQUARES = "squares"  # the plane of the squares of every head's products, summed over heads
ROOMY = ("cuda",)  # devices whose allocators break up large pieces of memory that are given back and taken again
SHARE = "share "  # before a parameter's name: the plane of the products of its gradients


@dataclass(frozen=True, eq=False)
class Row:
    """The features of one row of tiles and one group of heads, and the self products (n, heads) of two sets of inputs."""

    number: int
    group: int
    held: Features
    side: Tensor | None
    cache: FactorCache | None = None  # instead of features, where gradients are formed layer by layer


@dataclass(frozen=True, eq=False)
class Group:
    """One group of heads of a tile: the row's features, the `others` whose columns they meet, the first `own` of them the
    tile's own rows, and where products and self products of two sets (`side`) go."""

    row: Row
    rows: int
    others: Batch
    own: int
    place: Place
    side: Tensor | None


@dataclass(frozen=True, eq=False)
class Passed:
    """The factors of the columns of the last tile: of the next one's too, or of its rows, where tiles come in a good order."""

    columns: range
    group: int
    cache: FactorCache


class Tiles:
    """Tiles between `x1` and `x2` (None: `x1` with itself) from makers of features, one for each group of heads.

    A tile is `rows` samples by `columns` (None: as many); blocks of `block` samples pass by, with `workspace` bytes for
    products. `repeatable`: one thread makes every sum and all blocks of a tile are tried, so that its bits, and what is said of
    parameters used in new ways, are a matter of the tile alone. `Grid.path` is the quick order.
    `forming`: bytes for gradients formed layer by layer (`layers`); 0: features of the rows stay, blocks pass by.
    `wide`: columns of products of the rows with each other, where they are more than a block's.
    """

    def __init__(
        self,
        makers: Sequence[Maker],
        x1: Batch,
        x2: Batch | None,
        rows: int,
        columns: int | None = None,
        *,
        block: int,
        workspace: int,
        repeatable: bool,
        forming: int = 0,
        wide: int = 0,
    ) -> None:
        self.groups = [[maker] for maker in makers]
        self.x1, self.x2, self.columns, self.repeatable = x1, x2, columns, repeatable
        self.forming, self.wide = forming, wide
        first = makers[0]
        self.heads = first.width if first.full else 1
        self.dtype: torch.dtype = first.dtype
        self.device = first.device
        self.threads = 1
        self._advancing = threading.Lock()
        self._row: Row | None
        self._passed: Passed | None
        self._room: Tensor | None  # on a GPU, for gradients that are formed layer by layer
        self.recut(rows, block, workspace)

    def recut(self, rows: int, block: int, workspace: int) -> None:
        """Other tiles and blocks of the same kernel."""
        self.block, self.workspace = block, workspace
        n, m = len(self.x1) * self.heads, len(self.x1 if self.x2 is None else self.x2) * self.heads
        across = None if self.columns is None else self.columns * self.heads
        self.grid = Grid(n, m, rows * self.heads, symmetric=self.x2 is None, across=across)
        self.forget()

    @property
    def pairs(self) -> int:
        """How many pairs of samples are computed, once for each group of heads."""
        tiles = (self.grid.computed(i, j) for i, j in self.grid)
        areas = (len(_samples(rows, self.heads)) * len(_samples(columns, self.heads)) for rows, columns in tiles)
        return sum(areas) * len(self.groups)

    @property
    def makers(self) -> list[Maker]:
        """All of them, those of every thread and group."""
        return [maker for makers in self.groups for maker in makers]

    def staff(self, workers: int) -> int:
        """Let so many threads work on blocks of their own, or as many as there can be; how many that are."""
        for makers in self.groups:
            recruit(makers, workers)
        self.threads = max(1, min(workers, *(len(makers) for makers in self.groups)))
        return self.threads

    def coverage(self) -> Coverage | None:
        """What was done for every parameter, the seconds of all threads added up."""
        found = [one for one in (maker.coverage() for maker in self.makers) if one is not None]
        return functools.reduce(add, found) if found else None

    def certificate(self) -> Certificate:
        """What was checked."""
        return functools.reduce(add, (maker.certificate() for maker in self.makers), Certificate())

    def tile(self, i: int, j: int, place: Place | None = None) -> TileValues:
        """Tile (i, j), and `k(x, x)` of the inputs of two sets: of its rows, in the first row of its columns too."""
        rows, columns = (_samples(part, self.heads) for part in self.grid.computed(i, j))
        if place is None:
            shape = len(rows) * self.heads, len(columns) * self.heads
            place = Place(torch.zeros(shape, dtype=self.dtype, device=self.device))
        others = (self.x1 if self.x2 is None else self.x2)[columns.start : columns.stop]
        own = len(rows) if self.x2 is None and columns.start == rows.start else 0
        wide = self.block if place.planes else max(self.block, min(self.wide, own // (4 * self.threads)))
        blocks = list(ranges(0, own, wide))[::-1]  # of its own, the last are the longest
        blocks += ranges(own, len(columns), self.block)
        sides: list[list[Tensor]] = [[], []]
        for number, makers in enumerate(self.groups):
            row, new = self.hold(i, number), None
            if self.x2 is not None and i == 0:
                new = torch.zeros(len(columns), makers[0].width, dtype=torch.float64, device=self.device)
            group = Group(row, len(rows), others, own, place, new)
            if row.cache is not None:
                self._layers(group, row.cache, columns)
            else:
                self._share(makers, blocks, functools.partial(self._block, group))
            for side, part in zip(sides, (row.side, new)):
                side += [] if part is None else [flat(part, makers[0].full)]
            del row, group  # the features of the next group are made when these are gone
        self.groups[0][0].check_finite(place.values, self.x1[rows.start : rows.stop])
        row_side, column_side = (functools.reduce(add, parts) if parts else None for parts in sides)
        return TileValues(place.values, row_side, column_side, place.planes)

    def hold(self, i: int, group: int = 0) -> Row:
        """The features of row i, which are kept until another row, or group of heads, is asked for."""
        if self._passed is not None and self._passed.group != group:
            self._passed = None
        if self._row is None or (self._row.number, self._row.group) != (i, group):
            self._row = None
            if self.forming and self._room is None and self.device.type in ROOMY:
                self._room = torch.empty(self.forming + ALIGNED, dtype=torch.uint8, device=self.device)
            makers = self.groups[group]
            rows = _samples(self.grid.rows(i), self.heads)
            x = self.x1[rows.start : rows.stop]
            held: Features = {}
            side = None
            if self.x2 is not None:
                side = torch.zeros(len(x), makers[0].width, dtype=torch.float64, device=self.device)
            if self.forming:
                cache = None if self.x2 is not None else self._again(rows, group)
                self._passed = None if cache is not None else self._passed
                cache = cache or self._factors(makers, x, side, check=self.repeatable)
                self._row = Row(i, group, held, side, cache)
                return self._row
            blocks = ranges(0, len(x), self.block)
            self._share(makers, blocks, lambda maker, at: hold_block(maker, held, x, at, side))
            self._row = Row(i, group, held, side)
        return self._row

    def _factors(self, makers: Sequence[Maker], x: Batch, side: Tensor | None, *, check: bool) -> FactorCache:
        """The factors of all samples of `x`, run by one maker."""
        cache = FactorCache(len(x), side)

        def put(maker: Maker, at: range) -> None:
            cache.put(maker, x, at, check=check, room=self._room)

        self._share(makers[:1], ranges(0, len(x), self.block), put)
        return cache

    def forget(self) -> None:
        """Make room: the features of the row are computed again when they are asked for."""
        self._row = self._room = self._passed = None

    def _again(self, columns: range, group: int, side: Tensor | None = None) -> FactorCache | None:
        """The factors of the last tile's columns, if they are those asked for and their self products are not."""
        last = self._passed
        return (
            last.cache if last is not None and side is None and (last.columns, last.group) == (columns, group) else None
        )

    def _layers(self, group: Group, cache: FactorCache, at: range) -> None:
        """One group of heads, layer by layer; a tile is its own inputs, or none of them."""
        row, own, place = group.row, group.own, group.place
        if own not in (0, len(group.others)):
            raise NtkscopeError(
                f"a tile of {len(group.others)} columns, {own} of them its own rows, cannot be made layer by layer"
            )
        makers = self.groups[row.group]
        columns = cache if own else self._again(at, row.group, group.side)
        if columns is None:
            self._passed = None  # before there are others
            columns = self._factors(makers, group.others, group.side, check=False)

        def work(maker: Maker, _: range) -> None:
            total = Layered(maker, cache, columns, self.block, self.forming, self.workspace, self._room).total()
            with maker.clock("writing"):
                for at in ranges(0, columns.n, self.block):
                    height, start = at.stop if own else cache.n, at.start * self.heads
                    part = total[: height * self.heads, start : at.stop * self.heads]
                    write(place.values, part, 0, start, bool(own), add=row.group > 0)
            place.advance(cache.n * columns.n)

        self._share(makers[:1], [range(1)], work)
        if not own:
            self._passed = Passed(at, row.group, columns)

    def _block(self, group: Group, maker: Maker, at: range) -> None:
        """The products of one block of columns, float64; of the tile's own inputs only with rows up to the block's end, of
        which half are enough: the rest is symmetric."""
        row, place, inside, width = group.row, group.place, at.stop <= group.own, len(at)
        column = cut(row.held, at) if inside else passing(maker, group.others, at, group.side)
        height, start = at.stop if inside else group.rows, at.start * self.heads
        first, size = (height - width) * self.heads, self.heads
        total = torch.zeros(height * size, width * size, dtype=torch.float64, device=self.device)
        spot = maker.spot(height, width)
        shares = any(name != SQUARES for name in place.planes)
        by_head = None
        if SQUARES in place.planes:
            by_head = torch.zeros(maker.width, height, width, dtype=torch.float64, device=self.device)
        how: dict[str, Any] = {"precision": maker.precision, "workspace": self.workspace}
        for piece, left, right in feature_pairs(
            maker, row.held, column, height, spot, apart=shares or by_head is not None
        ):
            into = torch.zeros_like(total) if shares else total
            each = [(into, left, right)]
            if by_head is not None:
                heads = [slice(k, k + 1) for k in range(maker.width)]
                each = [(one, left.some(k), right.some(k)) for one, k in zip(by_head, heads)]
            with maker.clock("products", piece):
                own = inside and by_head is None
                flops = sum(accumulate(*one, full=maker.full, own=own, **how) for one in each)
            maker.count("products", flops)
            if shares:
                if inside:
                    mirror(into[first:])
                total += into
                write(place.planes[SHARE + piece.name], into, 0, start, inside, add=True)
        if by_head is not None:
            total = by_head.sum(0)
        elif inside and not shares:
            mirror(total[first:])
        column.settle()
        if spot is not None:
            maker.settle_spot(spot, total)
        with maker.clock("writing"):
            write(place.values, total, 0, start, inside, add=row.group > 0)
            if by_head is not None:
                write(place.planes[SQUARES], by_head.square_().sum(0), 0, start, inside, add=row.group > 0)
        with self._advancing:
            place.advance(group.rows * width)

    def _share(self, makers: Sequence[Maker], blocks: Iterable[range], work: Callable[[Maker, range], None]) -> None:
        """`work` on every block, by one maker or by several side by side."""
        makers = makers[: self.threads]
        changed: list[GraphMismatch] = []

        def collecting(maker: Maker, at: range) -> None:
            try:
                work(maker, at)
            except GraphMismatch as change:
                changed.append(change)

        try:
            tried = collecting if self.repeatable else work
            if self.device.type == "cpu" and (self.repeatable or len(makers) > 1):
                each = 1 if self.repeatable else max(1, torch.get_num_threads() // len(makers))
                share(makers, blocks, tried, threads_each=each)
            else:
                for at in blocks:
                    tried(makers[0], at)
        except (NtkscopeError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of the model's own code: threads may have disturbed each other
            if len(makers) == 1:
                raise
            raise GraphMismatch(set(), suspect=True) from error
        GraphMismatch.raise_all(changed)


def _samples(part: slice, heads: int) -> range:
    """The samples of some rows or columns of the matrix."""
    return range(part.start // heads, part.stop // heads)

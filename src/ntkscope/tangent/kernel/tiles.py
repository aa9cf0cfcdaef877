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
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ntkscope.core import Certificate, NtkscopeError
from ntkscope.core.machine.threads import recruit, share
from ntkscope.linalg.grams.tiling import Grid, Place, TileValues
from ntkscope.tangent.blocks.products import (
    Column,
    Features,
    Maker,
    block_products,
    cut,
    flat,
    hold_block,
    passing,
    ranges,
    write,
)
from ntkscope.tangent.certify.auditor import GraphMismatch
from ntkscope.tangent.kernel.by_layers import ALIGNED, FactorCache, Layered
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.kernel.plan import Footprint
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock

SQUARES = "squares"  # the plane of the squares of every head's products, summed over heads
ROOMY = ("cuda",)  # devices whose allocators break up large pieces of memory that are given back and taken again
SHARE = "share "  # before a parameter's name: the plane of the products of its gradients


@runtime_checkable
class TileMaker(Maker, Protocol):
    """A maker of features that can be cut into tiles and shared among threads."""

    @property
    def footprint(self) -> Footprint: ...

    def twin(self) -> TileMaker: ...

    def check_finite(self, values: Tensor, x: Batch) -> None: ...

    def coverage(self) -> Coverage | None: ...

    def certificate(self) -> Certificate: ...


@dataclass(frozen=True, eq=False)
class Row:
    """The features of one row of tiles and one group of heads, and the self products (n, heads) of two sets of inputs."""

    number: int
    group: int
    held: Features
    side: Tensor | None
    cache: FactorCache | None = None  # instead of features, where gradients are formed layer by layer


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
    """

    def __init__(
        self,
        makers: Sequence[TileMaker],
        x1: Batch,
        x2: Batch | None,
        rows: int,
        columns: int | None = None,
        *,
        block: int,
        workspace: int,
        repeatable: bool,
        forming: int = 0,
    ) -> None:
        self.groups = [[maker] for maker in makers]
        self.x1, self.x2, self.columns, self.repeatable = x1, x2, columns, repeatable
        self.forming = forming
        first = makers[0]
        self.heads = first.width if first.full else 1
        self.dtype: torch.dtype = first.dtype
        self.device = first.device
        self.threads = 1
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
    def makers(self) -> list[TileMaker]:
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
        sides: list[list[Tensor]] = [[], []]
        for group in range(len(self.groups)):
            row = self.hold(i, group)
            new = None
            if self.x2 is not None and i == 0:
                new = torch.zeros(len(columns), self.groups[group][0].width, dtype=torch.float64, device=self.device)
            self._contract(row, rows, columns, place, new)
            for side, part in zip(sides, (row.side, new)):
                side += [] if part is None else [flat(part, self.groups[group][0].full)]
            del row  # the features of the next group are made when these are gone
        self.groups[0][0].check_finite(place.values, self.x1[rows.start : rows.stop])
        row_side, column_side = (functools.reduce(add, parts) if parts else None for parts in sides)
        return TileValues(place.values, row_side, column_side, place.planes)

    def hold(self, i: int, group: int = 0) -> Row:
        """The features of row i, which are kept until another row, or group of heads, is asked for."""
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
                cache = cache or self._shelf(makers, x, side, check=self.repeatable)
                self._row = Row(i, group, held, side, cache)
                return self._row
            blocks = ranges(0, len(x), self.block)
            self._share(makers, blocks, lambda maker, at: hold_block(maker, held, x, at, side))
            self._row = Row(i, group, held, side)
        return self._row

    def _shelf(self, makers: Sequence[TileMaker], x: Batch, side: Tensor | None, *, check: bool) -> FactorCache:
        """The factors of all samples of `x`, run by one maker."""
        cache = FactorCache(len(x), side)

        def put(maker: TileMaker, at: range) -> None:
            assert isinstance(maker, Engine)
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

    def _contract(self, row: Row, rows: range, columns: range, place: Place, side: Tensor | None) -> None:
        """Add one group of heads to a tile; of its own inputs only the rows up to a block's end, the rest by symmetry."""
        others = (self.x1 if self.x2 is None else self.x2)[columns.start : columns.stop]
        own = len(rows) if self.x2 is None and columns.start == rows.start else 0
        if row.cache is not None:
            self._layers(row, row.cache, columns, others, own, place, side)
            return
        lock = threading.Lock()

        def work(maker: TileMaker, at: range) -> None:
            inside = at.stop <= own
            column = cut(row.held, at) if inside else passing(maker, others, at, side)
            self._block(maker, row, at, at.stop if inside else len(rows), column, place, inside)
            with lock:
                place.advance(len(rows) * len(at))

        blocks = list(ranges(0, own, self.block))[::-1]  # of its own, the last are the longest
        self._share(self.groups[row.group], [*blocks, *ranges(own, len(columns), self.block)], work)

    def _layers(
        self, row: Row, cache: FactorCache, at: range, others: Batch, own: int, place: Place, side: Tensor | None
    ) -> None:
        """One group of heads, layer by layer; a tile is its own inputs, or none of them."""
        if own not in (0, len(others)):
            raise NtkscopeError(
                f"a tile of {len(others)} columns, {own} of them its own rows, cannot be made layer by layer"
            )
        makers = self.groups[row.group]
        columns = cache if own else self._again(at, row.group, side)
        if columns is None:
            self._passed = None  # before there are others
            columns = self._shelf(makers, others, side, check=False)

        def work(maker: TileMaker, _: range) -> None:
            assert isinstance(maker, Engine)
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

    def _block(
        self, maker: TileMaker, row: Row, at: range, height: int, column: Column, place: Place, inside: bool
    ) -> None:
        """All pieces of one block of columns."""
        start = at.start * self.heads
        shares = [name for name in place.planes if name != SQUARES]
        by_head = None
        if SQUARES in place.planes:
            by_head = torch.zeros(maker.width, height, len(at), dtype=torch.float64, device=self.device)

        def keep(piece: ParameterBlock, part: Tensor) -> None:
            write(place.planes[SHARE + piece.name], part, 0, start, inside, add=True)

        kept = keep if shares else None
        total = block_products(maker, row.held, column, height, len(at), self.workspace, kept, by_head, inside)
        with maker.clock("writing"):
            write(place.values, total, 0, start, inside, add=row.group > 0)
            if by_head is not None:
                write(place.planes[SQUARES], by_head.square_().sum(0), 0, start, inside, add=row.group > 0)

    def _share(
        self, makers: Sequence[TileMaker], blocks: Iterable[range], work: Callable[[TileMaker, range], None]
    ) -> None:
        """`work` on every block, by one maker or by several side by side."""
        makers = makers[: self.threads]
        changed: list[GraphMismatch] = []

        def watched(maker: TileMaker, at: range) -> None:
            try:
                work(maker, at)
            except GraphMismatch as change:
                if not self.repeatable:
                    raise
                changed.append(change)

        try:
            if self.device.type == "cpu" and (self.repeatable or len(makers) > 1):
                each = 1 if self.repeatable else max(1, torch.get_num_threads() // len(makers))
                share(makers, blocks, watched, threads_each=each)
            else:
                for at in blocks:
                    watched(makers[0], at)
        except (NtkscopeError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of the model's own code: threads may have disturbed each other
            if len(makers) == 1:
                raise
            raise GraphMismatch(set(), suspect=True) from error
        if changed:
            names = {name for change in changed for name in change.names}
            suspect = all(change.suspect for change in changed)
            raise GraphMismatch(names, suspect=suspect, refusal=changed[0].refusal)


def groups_of(maker: TileMaker, heads: int) -> list[TileMaker]:
    """The maker itself, or one for every group of so many of its heads (0: all of them)."""
    if not 0 < heads < maker.width:
        return [maker]
    assert isinstance(maker, Engine)
    return [maker.part(at, min(maker.width, at + heads)) for at in range(0, maker.width, heads)]


def group_footprint(maker: TileMaker, heads: int) -> Footprint:
    """What a sample takes where so many heads are taken at once."""
    if not 0 < heads < maker.width:
        return maker.footprint
    assert isinstance(maker, Engine)
    return maker.part(0, heads).footprint


def _samples(part: slice, heads: int) -> range:
    """The samples of some rows or columns of the matrix."""
    return range(part.start // heads, part.stop // heads)

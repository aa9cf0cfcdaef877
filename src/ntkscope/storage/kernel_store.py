"""`KernelStore`: one kernel matrix on disk, tile by tile, with what its numbers depend on.

A zarr version 3 group: array `values` (n, m), one tile per chunk, crc32c after each; arrays `row_diagonal` and, for a cross
kernel, `column_diagonal` in float64, one chunk per row (column) of tiles. The group's attributes say the rest in JSON:
`kind`, `schema`, `grid`, `dtype`, `labels`, `fingerprint`, `answers` of the network to a few items, and a `checksum` of all
of them. A seal beside each tile binds it to its place and to these attributes. A symmetric kernel keeps the tiles of its
upper triangle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.errors import DamagedTile, StoreError
from ntkscope.core.files.schema import shown
from ntkscope.core.identity import Answers, machine
from ntkscope.linalg.grams.tiling import Answering, Grid, TileSource, TileValues
from ntkscope.storage._base import Store, checked_entries, mapping_of
from ntkscope.storage._zarr import ChunkedArray, Folder, differences, dtype_named, folder, whole_number

LARGEST_TILE = 1 << 34  # bytes of a tile that is accepted
MOST_TILES = 1 << 24  # tiles of a store that is accepted
SMALL, RATIO = 1 << 28, 1000  # bytes allowed for numbers that are not there yet; more for each one that is


@dataclass(frozen=True)
class KernelStore(Store):
    """The tiles of one kernel in a folder or behind an fsspec URL; `prepare`, `open` and `find` return one.

    Tiles are written atomically: each is written under another name, flushed and renamed. Several processes may
    write at once, since a tile's bits are the same whoever computes it. It can be pickled, and holds no open files.

    Examples:
        >>> K = ns.kernel("trntk0", model, x, store=folder)
        >>> store = KernelStore.open(folder)
        >>> store.grid, store.missing(), store.read(0, 0).shape
        (Grid(n=12, m=12, size=12, symmetric=True, across=None), [], torch.Size([12, 12]))
    """

    folder: Folder
    grid: Grid
    dtype: torch.dtype
    labels: Mapping[str, Any]
    fingerprint: Mapping[str, str]
    answers: Answers | None = None

    kind, named, parts = "ntkscope kernel", "kernel store", "tiles"

    # -- finding one ------------------------------------------------------------------------------------------------

    @classmethod
    def prepare(cls, url: str | os.PathLike[str], source: TileSource) -> KernelStore:
        """The store for this source's tiles: a new one, or the existing one if nothing the numbers depend on differs and
        the source still gives the answers that were kept when it was created."""
        new = cls(folder(url), source.grid, source.dtype, dict(source.labels), dict(source.fingerprint))
        return new.begun(lambda: source.answers() if isinstance(source, Answering) else None)

    def again(self) -> KernelStore | None:
        """The store currently at this place."""
        return KernelStore.find(self.url)

    def said(self, tile: tuple[int, int]) -> str:
        """A tile's name in a message."""
        return str(tile)

    def require(self, source: TileSource | KernelStore) -> None:
        found = differences(self.fingerprint, source.fingerprint)
        mine, theirs = ({"rows": g.n, "columns": g.m, "tile size": g.size, "symmetric": g.symmetric}
                        for g in (self.grid, source.grid))  # fmt: skip
        found += differences(mine, theirs) + differences({"dtype": str(self.dtype)}, {"dtype": str(source.dtype)})
        if found:
            raise StoreError(
                f"{self.url} holds another kernel: {'; '.join(found)}; resume with what it was computed from, or choose"
                " another folder"
            )

    def compare_tile(self, i: int, j: int, tile: TileValues, device: torch.device | str = "cpu") -> None:
        """Raise an error unless this is the stored tile: bit for bit if the same kind of machine computed it on a CPU,
        else up to rounding."""
        self._compare(f"tile {(i, j)}", self.read(i, j), tile.values, self._values.computed_on((i, j)), device)

    # -- tiles ------------------------------------------------------------------------------------------------------

    def done(self) -> set[tuple[int, int]]:
        """The existing tiles, judged by their names and sizes; `damaged` reads them."""
        return {(i, j) for (i, j), size in self._present().items() if size == self._values.size}

    def missing(self) -> list[tuple[int, int]]:
        """The missing tiles, in grid order."""
        done = self.done()
        return [tile for tile in self.grid if tile not in done]

    def has(self, i: int, j: int) -> bool:
        """Whether this tile exists completely, without listing the others."""
        self._check(i, j)
        return self.folder.size(self._values.key((i, j))) == self._values.size

    def write(self, i: int, j: int, tile: TileValues, device: torch.device | str = "cpu") -> None:
        """Keep one tile, and the diagonals it carries; an existing one is replaced by the same bits. `device`: where it
        was computed."""
        self._check(i, j)
        values = tile.values
        expected = (_length(self.grid.rows(i)), _length(self.grid.columns(j)))
        if tuple(values.shape) != expected or values.dtype != self.dtype:
            raise UsageError(
                f"got tile {(i, j)} as {values.dtype} of shape {tuple(values.shape)}; expected {self.dtype} of shape"
                f" {expected}"
            )
        if tile.planes:
            raise UsageError(
                f"got tile {(i, j)} with further planes ({', '.join(tile.planes)}); a store keeps only the kernel"
            )
        if not bool(torch.isfinite(values).all()):
            first = tuple((~torch.isfinite(values)).nonzero()[0].tolist())
            raise NumericalError(
                f"tile {(i, j)} holds NaN or infinity, the first at {first} of the tile, row"
                f" {self.grid.rows(i).start + first[0]} and column {self.grid.columns(j).start + first[1]} of the matrix;"
                " check the inputs or activations it was computed from"
            )
        if self.grid.symmetric and i == j and not torch.equal(values, values.T):
            raise UsageError(
                f"tile {(i, j)} on the diagonal of a symmetric kernel is not symmetric; take (T + T.T) / 2"
            )
        here = machine(device)
        for array, number, diagonal in self._carried(i, j, tile):
            array.put((number,), diagonal.to(torch.float64), here)
        self._values.put((i, j), values, here)  # last: a tile that exists has its diagonals

    def read(self, i: int, j: int) -> Float[Tensor, "h w"]:
        """One tile, its checksum verified."""
        self._check(i, j)
        values = self._values.get((i, j))
        if values is None:
            raise StoreError(
                f"tile {(i, j)} of {self.url} is missing ({len(self.done())} of {len(self.grid)} are there): fill the store"
                " again, which computes what is missing"
            )
        return values

    def damaged(self) -> list[tuple[int, int]]:
        """The existing tiles whose bytes, or those of the diagonal they carry, are wrong; reads everything."""
        done = self.done()
        bad = set(self._present()) - done
        for i, j in sorted(done):
            try:
                self.read(i, j)
            except DamagedTile:
                bad.add((i, j))
        for array, carrier in self._carriers:
            present = array.present()
            if not present and not self.grid.symmetric:
                continue  # perhaps its source does not know them: `without_diagonals`
            for number in range(-(-array.shape[0] // array.chunks[0])):
                if carrier(number) not in done:
                    continue
                try:
                    lost = (number,) not in present or array.get((number,)) is None
                except DamagedTile:
                    lost = True
                if lost:
                    bad.add(carrier(number))
        return sorted(bad)

    def without_diagonals(self) -> dict[str, list[tuple[int, int]]]:
        """For a cross kernel, the diagonals (by the field of a tile) that are entirely missing, and the existing tiles
        that would have provided them: either the source does not know them, or they were lost."""
        if self.grid.symmetric:
            return {}
        done = sorted(self.done())
        carried = {"row_diagonal": (self._row_diagonal, 1), "column_diagonal": (self._column_diagonal, 0)}
        found = {
            name: [tile for tile in done if tile[side] == 0]
            for name, (array, side) in carried.items()
            if not array.present()
        }
        return {name: tiles for name, tiles in found.items() if tiles}

    def drop(self, i: int, j: int) -> None:
        """Remove one tile."""
        self._check(i, j)
        self._values.remove((i, j))

    # -- diagonals --------------------------------------------------------------------------------------------------

    def row_diagonal(self, *, partial: bool = False) -> Float[Tensor, " n"] | None:
        """`k(x_i, x_i)` of the row inputs in float64, None if the source does not know it; `partial`: NaN where missing."""
        return _diagonal(self._row_diagonal, partial)

    def column_diagonal(self, *, partial: bool = False) -> Float[Tensor, " m"] | None:
        """`k(x'_j, x'_j)` of the column inputs, likewise."""
        return _diagonal(self._row_diagonal if self.grid.symmetric else self._column_diagonal, partial)

    # -- inside -----------------------------------------------------------------------------------------------------

    @cached_property
    def _values(self) -> ChunkedArray:
        g = self.grid
        return ChunkedArray(
            self.folder, "values", (g.n, g.m), (min(g.size, g.n), min(g.size, g.m)), self.dtype, self._id
        )

    @cached_property
    def _row_diagonal(self) -> ChunkedArray:
        g = self.grid
        return ChunkedArray(self.folder, "row_diagonal", (g.n,), (min(g.size, g.n),), torch.float64, self._id)

    @cached_property
    def _column_diagonal(self) -> ChunkedArray:
        g = self.grid
        return ChunkedArray(self.folder, "column_diagonal", (g.m,), (min(g.size, g.m),), torch.float64, self._id)

    @property
    def _arrays(self) -> list[ChunkedArray]:
        cross = [] if self.grid.symmetric else [self._column_diagonal]
        return [self._values, self._row_diagonal, *cross]

    @property
    def _carriers(self) -> list[tuple[ChunkedArray, Callable[[int], tuple[int, int]]]]:
        """Each diagonal, and which tile rewrites its k-th chunk when that is damaged."""
        if self.grid.symmetric:
            return [(self._row_diagonal, lambda k: (k, k))]
        return [(self._row_diagonal, lambda k: (k, 0)), (self._column_diagonal, lambda k: (0, k))]

    def _carried(self, i: int, j: int, tile: TileValues) -> list[tuple[ChunkedArray, int, Tensor]]:
        """The pieces of diagonals to be written with a tile: those of the tile that carries them."""
        if self.grid.symmetric:
            own = tile.values.diagonal() if tile.row_diagonal is None else tile.row_diagonal
            return [(self._row_diagonal, i, own)] if i == j else []
        rows = [(self._row_diagonal, i, tile.row_diagonal)] if j == 0 and tile.row_diagonal is not None else []
        if i == 0 and tile.column_diagonal is not None:
            rows.append((self._column_diagonal, j, tile.column_diagonal))
        return rows

    def _present(self) -> dict[tuple[int, int], int]:
        return {(i, j): size for (i, j), size in self._values.present().items() if i <= j or not self.grid.symmetric}

    def _check(self, i: int, j: int) -> None:
        down, across = self.grid.shape
        if not (0 <= i < down and 0 <= j < across) or (self.grid.symmetric and i > j):
            triangle = " of the upper triangle" if self.grid.symmetric else ""
            raise UsageError(f"got tile {(i, j)}; expected one{triangle} of {down} × {across} tiles")

    def _shape(self) -> dict[str, Any]:
        grid = self.grid
        return {"grid": {"n": grid.n, "m": grid.m, "size": grid.size, "symmetric": grid.symmetric}}

    @classmethod
    def validated(cls, place: Folder, attributes: Mapping[str, Any]) -> KernelStore:
        where = place.url
        grid, (labels, fingerprint, answers) = mapping_of(attributes, "grid", where), checked_entries(attributes, where)
        n, m, size = (whole_number(grid.get(name), f"grid.{name}", where) for name in ("n", "m", "size"))
        symmetric = grid.get("symmetric")
        if not isinstance(symmetric, bool) or (symmetric and n != m):
            raise StoreError(
                f"{where}: grid.symmetric is {shown(symmetric)} for shape {(n, m)}; expected true if square, or false"
            )
        dtype = dtype_named(attributes.get("dtype"), where)
        if min(size, n) * min(size, m) * torch.finfo(dtype).bits // 8 > LARGEST_TILE:
            raise StoreError(
                f"{where}: tiles of size {size} for shape {(n, m)}; expected at most {LARGEST_TILE} bytes per tile"
            )
        outputs = whole_number(labels.get("outputs", 1), "labels.outputs", where)
        if n % outputs or m % outputs:
            raise StoreError(f"{where}: labels.outputs is {outputs} for shape {(n, m)}; expected a divisor of both")
        believed = Grid(n, m, size, symmetric)
        if math.prod(believed.shape) > MOST_TILES:
            raise StoreError(
                f"{where}: {believed.shape} tiles of size {size}; expected at most {MOST_TILES} in all: larger tiles"
            )
        return cls(place, believed, dtype, labels, fingerprint, answers)


def _diagonal(array: ChunkedArray, partial: bool) -> Tensor | None:
    pieces = -(-array.shape[0] // array.chunks[0])
    present = array.present()
    if not present:
        return None
    where = array.folder.name(array.name)
    if not partial and len(present) < pieces:
        raise StoreError(f"{where} has {len(present)} of {pieces} pieces: fill the store again")
    check_claim(array.shape[0], sum(present.values()), where)
    result = torch.full(array.shape, torch.nan, dtype=torch.float64)
    for number in range(pieces):
        values = array.get((number,)) if (number,) in present else None
        if values is not None:
            start = number * array.chunks[0]
            result[start : start + len(values)] = values
        elif not partial:
            raise StoreError(
                f"piece {number} of {array.folder.name(array.name)} is missing, though others are there: fill the store again"
            )
    return result


def check_claim(count: int, held: int, where: str) -> None:
    """Raise an error if a file or folder claims `count` numbers of eight bytes but holds far fewer bytes."""
    if 8 * count > max(SMALL, RATIO * held):
        raise StoreError(
            f"{where} claims {count:,} numbers but holds {held:,} bytes; expected a store that was partly filled: fill it"
            " again in a new folder"
        )


def _length(part: slice) -> int:
    return int(part.stop - part.start)

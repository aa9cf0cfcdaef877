"""A Gram whose tiles stay on disk: read when needed, a few at a time, each once a product."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import StoreError
from ntkscope.linalg.gram import Gram, Index, Tile, slices, symmetric_eigenvalues
from ntkscope.linalg.mixed import product, transposed_product
from ntkscope.storage._files import folder, optional
from ntkscope.storage._zarr import kind_of
from ntkscope.storage.certified import read_certificate
from ntkscope.storage.feature_store import KIND as FEATURES
from ntkscope.storage.store import KernelStore, check_claim
from ntkscope.storage.stored_features import open_features

Part: TypeAlias = slice | Tensor  # entries of a vector: consecutive ones, or by number


@dataclass(frozen=True)
class Side:
    """One side of a view of the stored matrix: which stored rows (columns) it takes, and by what each is multiplied."""

    size: int  # stored rows (columns)
    step: int  # of which a tile has this many
    chosen: Tensor | None = None  # None: all, in order
    scale: Tensor | None = None  # float64; None: ones

    def __len__(self) -> int:
        return self.size if self.chosen is None else len(self.chosen)

    def take(self, index: Index) -> Side:
        """The side of a sub-matrix."""
        numbers = torch.arange(self.size) if self.chosen is None else self.chosen
        return Side(self.size, self.step, numbers[index], None if self.scale is None else self.scale[index])

    def scaled(self, factors: Tensor) -> Side:
        """The side of a matrix whose rows (columns) are multiplied by `factors`."""
        return Side(self.size, self.step, self.chosen, factors if self.scale is None else self.scale * factors)

    def parts(self, within: slice | None = None) -> dict[int, tuple[Part, Part]]:
        """For each tile that entries `within` come from: those entries, and where in the tile they are."""
        within = within or slice(0, len(self))
        if within.start >= within.stop:
            return {}
        if self.chosen is None:
            found: dict[int, tuple[Part, Part]] = {}
            for k in range(within.start // self.step, -(-within.stop // self.step)):
                first, last = max(within.start, k * self.step), min(within.stop, (k + 1) * self.step)
                found[k] = slice(first, last), slice(first - k * self.step, last - k * self.step)
            return found
        numbers = self.chosen[within]
        tiles = numbers // self.step
        order = torch.argsort(tiles, stable=True)
        kinds, counts = torch.unique_consecutive(tiles[order], return_counts=True)
        groups = zip(kinds.tolist(), order.split(counts.tolist()))
        return {k: (group + within.start, numbers[group] - k * self.step) for k, group in groups}

    def factors(self, part: Part, dtype: torch.dtype) -> Tensor | None:
        """What the entries of `part` are multiplied by."""
        return None if self.scale is None else self.scale[part].to(dtype)


@final
class TiledGram(Gram):
    """A kernel matrix in a `KernelStore`; `open_kernel` makes one.

    `K @ v` reads every stored tile once, in both directions where the kernel is symmetric, while the next one is being
    read: the memory of a few tiles. Products of tiles are summed in float64. Sub-matrices and normalised Grams are
    views of the same files. `dense()` and `np.asarray` form the matrix; `to_dask()` gives it as a `dask.array`.
    """

    _out_of_core = True

    def __init__(
        self,
        store: KernelStore,
        *,
        partial: bool = False,
        sides: tuple[Side, Side] | None = None,
        flipped: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        symmetric: bool | None = None,
        name: str | None = None,
        rows: str | None = None,
        outputs: int | None = None,
        row_diagonal: Tensor | None = None,
        column_diagonal: Tensor | None = None,
        coverage: Any | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        grid, labels = store.grid, store.labels
        dtype, device = dtype or store.dtype, torch.device(device)
        if sides is None:  # the whole matrix as it is stored
            sides = Side(grid.n, grid.size), Side(grid.m, grid.size)
            kept = store.row_diagonal(partial=partial), store.column_diagonal(partial=partial)
            if partial and grid.symmetric and kept[0] is None:
                check_claim(grid.n, 0, store.url)
                kept = (torch.full((grid.n,), torch.nan),) * 2
            row_diagonal, column_diagonal = (
                given if given is not None else None if stored is None else stored.to(device, dtype)
                for given, stored in zip((row_diagonal, column_diagonal), kept)
            )
        super().__init__(
            (len(sides[0]), len(sides[1])),
            dtype,
            device,
            symmetric=grid.symmetric if symmetric is None else symmetric,
            name=labels.get("name", "") if name is None else name,
            rows=labels.get("rows", "samples") if rows is None else rows,
            outputs=labels.get("outputs", 1) if outputs is None else outputs,
            row_diagonal=row_diagonal,
            column_diagonal=column_diagonal,
            coverage=coverage,
            meta=_meta(store) if meta is None else meta,
        )
        self.store = store
        self._partial = partial
        self._sides = sides
        self._flipped = flipped  # whether rows of this are columns of the store

    def to_dask(self) -> Any:
        """The matrix as a `dask.array`, a block a tile; nothing is read before dask computes."""
        blocks = [
            tuple(part.stop - part.start for part in slices(len(side), side.step)) or (0,) for side in self._sides
        ]
        array = optional("dask.array", "distributed")
        kind = torch.empty(0, dtype=self.dtype).numpy().dtype
        return array.map_blocks(_block, self, chunks=tuple(blocks), dtype=kind, meta=np.empty((0, 0), dtype=kind))

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, tile: tuple[int, int]) -> Tensor:
        """One stored tile on this Gram's device; NaN where it is missing and that is allowed."""
        if self._partial and not self.store.has(*tile):
            grid = self.store.grid
            rows, columns = grid.rows(tile[0]), grid.columns(tile[1])
            shape = rows.stop - rows.start, columns.stop - columns.start
            return torch.full(shape, torch.nan, dtype=self.store.dtype, device=self.device)
        return self.store.read(*tile).to(self.device)

    def _ahead(self, wanted: Iterable[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Tiles in this order, the next one being read while one is used."""
        with ThreadPoolExecutor(1, thread_name_prefix="ntkscope-tiles") as reader:
            waiting = None
            for tile in wanted:
                coming = tile, reader.submit(self._read, tile)
                if waiting is not None:
                    yield waiting[0], waiting[1].result()
                waiting = coming
            if waiting is not None:
                yield waiting[0], waiting[1].result()

    def _uses(self, rows: slice | None = None, columns: slice | None = None) -> dict[tuple[int, int], list[Any]]:
        """For each stored tile what it is needed for: entries of rows and columns, where in the tile, transposed or not."""
        uses: dict[tuple[int, int], list[Any]] = {}
        across = self._sides[1].parts(columns)
        for i, (to_rows, in_rows) in self._sides[0].parts(rows).items():
            for j, (to_columns, in_columns) in across.items():
                flipped = self._flipped or (self.store.grid.symmetric and i > j)
                tile = (j, i) if flipped else (i, j)
                uses.setdefault(tile, []).append((to_rows, in_rows, to_columns, in_columns, flipped))
        return dict(sorted(uses.items()))

    def _piece(self, rows: slice, columns: slice, tiles: Any = None) -> Tensor:
        """The entries of a rectangle, formed."""
        values = torch.empty(rows.stop - rows.start, columns.stop - columns.start, dtype=self.dtype, device=self.device)
        uses = self._uses(rows, columns)
        for tile, stored in tiles(uses) if tiles is not None else self._ahead(uses):
            for to_rows, in_rows, to_columns, in_columns, flipped in uses[tile]:
                found = (stored.T if flipped else stored)[in_rows][:, in_columns].to(self.dtype)
                left = self._sides[0].factors(to_rows, self.dtype)
                right = self._sides[1].factors(to_columns, self.dtype)
                if left is not None and right is not None:
                    found = found * torch.outer(left, right).to(self.device)  # K_ij and K_ji meet the same number
                _assign(values, _shifted(to_rows, rows.start), _shifted(to_columns, columns.start), found)
        return self._with_diagonal(values, rows, columns)

    # -- what Gram asks for -----------------------------------------------------------------------------------------

    def _form(self) -> Tensor:
        return self._piece(slice(0, self.shape[0]), slice(0, self.shape[1]))

    def _matmul(self, v: Tensor) -> Tensor:
        total = torch.zeros(self.shape[0], v.shape[1], dtype=torch.float64, device=self.device)
        left, right = self._sides
        uses = self._uses()
        for tile, stored in self._ahead(uses):
            for to_rows, in_rows, to_columns, in_columns, flipped in uses[tile]:
                height, width = stored.shape[::-1] if flipped else stored.shape
                factors = right.factors(to_columns, v.dtype)
                vectors = v[to_columns] if factors is None else v[to_columns] * factors.to(self.device)[:, None]
                if not _covers(in_columns, width):
                    vectors = vectors.new_zeros(width, v.shape[1]).index_add_(
                        0, _numbers(in_columns).to(self.device), vectors
                    )
                found = (transposed_product if flipped else product)(stored, vectors).to(torch.float64)
                found = found if _covers(in_rows, height) else found[in_rows]
                factors = left.factors(to_rows, torch.float64)
                found = found if factors is None else found * factors.to(self.device)[:, None]
                total[to_rows] += found  # the rows of a tile are chosen once each
        return total.to(torch.promote_types(self.dtype, v.dtype))

    def _diagonal(self) -> Tensor:
        raise StoreError(f"{self.store.url} has no row_diagonal, which a symmetric kernel keeps: fill the store again")

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        if size is None and all(side.chosen is None for side in self._sides):  # each stored tile once
            uses = self._uses()
            for tile, stored in self._ahead(uses):
                for rows, _, columns, _, _ in uses[tile]:
                    yield rows, columns, self._piece(rows, columns, lambda uses, s=stored: ((t, s) for t in uses))
            return
        cache = _Cache(self._read)
        for rows in slices(self.shape[0], size or self.store.grid.size):
            for columns in slices(self.shape[1], size or self.store.grid.size):
                yield rows, columns, self._piece(rows, columns, cache)

    def _transposed(self) -> Gram:
        flipped = not self._flipped and not self.store.grid.symmetric  # a symmetric store is its own transpose
        return self._again(sides=self._sides[::-1], flipped=flipped, **self._swapped_labels())

    def _select(self, rows: Index, columns: Index, labels: dict[str, Any]) -> Gram:
        rows, columns = (index if isinstance(index, slice) else index.cpu() for index in (rows, columns))
        return self._again(sides=(self._sides[0].take(rows), self._sides[1].take(columns)), **labels)

    def _normalized(self, rows: Tensor, columns: Tensor) -> Gram:
        left, right = self._sides
        return self._again(sides=(left.scaled(rows.cpu()), right.scaled(columns.cpu())), **self._unit_labels())

    def _eigenvalues(self) -> Tensor:
        return symmetric_eigenvalues(self._form())

    def _moved(self, dtype: torch.dtype, device: torch.device, labels: dict[str, Any]) -> Gram:
        return self._again(dtype=dtype, device=device, **labels)

    def _again(self, **changes: Any) -> TiledGram:
        same: dict[str, Any] = {
            "partial": self._partial,
            "sides": self._sides,
            "flipped": self._flipped,
            "dtype": self.dtype,
            "device": self.device,
        }
        return TiledGram(self.store, **(same | changes))


def open_kernel(url: str | os.PathLike[str], *, partial: bool = False) -> Gram:
    """The kernel in the store at a folder or fsspec URL, as a Gram that reads its tiles when they are needed.

    An incomplete store is refused, unless `partial=True` asks for it: what is missing is NaN then. A kernel of cosines is
    kept unnormalised, its label `normalize` says so, and it is divided as it is read; a partial one is not. A store of
    features (a projected kernel's) opens as the Gram of its features.
    """
    if kind_of(folder(url)) == FEATURES:
        return open_features(url)
    store = KernelStore.open(url)
    done, total = len(store.done()), len(store.grid)
    if done < total and not partial:
        raise StoreError(
            f"{store.url} is incomplete: {done} of {total} tiles are there; run again what filled it, or open what there"
            " is with partial=True"
        )
    found = TiledGram(store, partial=partial)
    return found.normalized() if store.labels.get("normalize") is True and not partial else found


class _Cache:
    """The tiles read last, a few of them: neighbouring pieces come from the same ones."""

    def __init__(self, read: Any, keep: int = 4) -> None:
        self._read, self._keep = read, keep
        self._kept: dict[tuple[int, int], Tensor] = {}

    def __call__(self, wanted: Iterable[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Tensor]]:
        for tile in wanted:
            stored = self._kept.pop(tile, None)
            if stored is None:
                while len(self._kept) >= self._keep:
                    self._kept.pop(next(iter(self._kept)))
                stored = self._read(tile)
            self._kept[tile] = stored
            yield tile, stored


def _block(gram: TiledGram, block_info: Any = None) -> np.ndarray:
    """One block of `to_dask`."""
    (first, last), (left, right) = block_info[None]["array-location"]
    return gram._piece(slice(first, last), slice(left, right)).cpu().numpy()


def _numbers(part: Part) -> Tensor:
    return torch.arange(part.start, part.stop) if isinstance(part, slice) else part


def _covers(part: Part, size: int) -> bool:
    """Whether a part is all of a tile's side, in order."""
    return isinstance(part, slice) and part.start == 0 and part.stop == size


def _shifted(part: Part, start: int) -> Part:
    return slice(part.start - start, part.stop - start) if isinstance(part, slice) else part - start


def _assign(values: Tensor, rows: Part, columns: Part, found: Tensor) -> None:
    if isinstance(rows, slice) or isinstance(columns, slice):
        values[rows, columns] = found
    else:
        values[rows[:, None], columns] = found


def _meta(store: KernelStore) -> dict[str, Any]:
    """What a store says of its kernel, its certificate included."""
    certificate = read_certificate(store.folder)
    return {**store.labels.get("meta", {}), **({} if certificate is None else {"certificate": certificate})}

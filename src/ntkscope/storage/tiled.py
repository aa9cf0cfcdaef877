"""A Gram whose tiles stay on disk: read when needed, a few at a time, each once per product."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack, final

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.errors import StoreError
from ntkscope.linalg.grams.gram import Gram, Tile, slices
from ntkscope.linalg.grams.labels import Labels, LabelWords
from ntkscope.linalg.grams.mixed import product, transposed_product
from ntkscope.linalg.grams.view import Index
from ntkscope.storage._files import folder, optional
from ntkscope.storage._zarr import kind_of
from ntkscope.storage.certified import read_certificate
from ntkscope.storage.feature_store import KIND as FEATURES
from ntkscope.storage.kernel_store import KernelStore, check_claim
from ntkscope.storage.stored_features import open_features


@final
class TiledGram(Gram):
    """A kernel matrix in a `KernelStore`; `open_kernel` returns one.

    `K @ v` reads every stored tile once, in both directions where the kernel is symmetric, while the next one is being
    read: the memory of a few tiles. Products of tiles are summed in float64. Sub-matrices and normalised Grams are
    views of the same files. `dense()` and `np.asarray` form the matrix; `to_dask()` gives it as a `dask.array`.

    Examples:
        >>> K = ns.kernel("trntk0", model, x, store=folder)
        >>> K
        TiledGram('trntk0', 12 × 12 symmetric, rows: samples, float32)
        >>> bool(torch.allclose(K @ torch.ones(12), K.dense().sum(1)))
        True
    """

    _out_of_core = True

    def __init__(
        self,
        store: KernelStore,
        *,
        partial: bool = False,
        device: torch.device | str = "cpu",
        **words: Unpack[LabelWords],
    ) -> None:
        grid, said = store.grid, store.labels
        kept = store.row_diagonal(partial=partial), store.column_diagonal(partial=partial)
        if partial and grid.symmetric and kept[0] is None:
            check_claim(grid.n, 0, store.url)
            kept = (torch.full((grid.n,), torch.nan),) * 2
        row, column = (None if stored is None else stored.to(torch.device(device), store.dtype) for stored in kept)
        labels = Labels(
            symmetric=grid.symmetric,
            name=said.get("name", ""),
            rows=said.get("rows", "samples"),
            outputs=said.get("outputs", 1),
            row_diagonal=row,
            column_diagonal=column,
            meta=_meta(store),
        )
        self.store = store
        self._partial = partial
        said_here = {name: value for name, value in words.items() if value is not None}
        super().__init__((grid.n, grid.m), store.dtype, torch.device(device), labels.but(**said_here))  # type: ignore[arg-type]

    def to_dask(self) -> Any:
        """The matrix as a `dask.array`, one block per tile; nothing is read before dask computes."""
        step = self.store.grid.size
        blocks = [tuple(part.stop - part.start for part in slices(size, step)) or (0,) for size in self.shape]
        array = optional("dask.array", "distributed")
        kind = torch.empty(0, dtype=self.dtype).numpy().dtype
        return array.map_blocks(_block, self, chunks=tuple(blocks), dtype=kind, meta=np.empty((0, 0), dtype=kind))

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, tile: tuple[int, int]) -> Tensor:
        """One stored tile on this Gram's device; NaN if it is missing and that is allowed."""
        if self._partial and not self.store.has(*tile):
            grid = self.store.grid
            rows, columns = grid.rows(tile[0]), grid.columns(tile[1])
            shape = rows.stop - rows.start, columns.stop - columns.start
            return torch.full(shape, torch.nan, dtype=self.store.dtype, device=self.device)
        return self.store.read(*tile).to(self.device)

    def _ahead(self, wanted: Iterable[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Tiles in this order, reading the next one while the current one is used."""
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
        grid = self.store.grid
        across = self._view.columns.parts(grid.size, columns)
        for i, (to_rows, in_rows) in self._view.rows.parts(grid.size, rows).items():
            for j, (to_columns, in_columns) in across.items():
                flipped = i > j if grid.symmetric else self._view.transposed  # a symmetric store is its own transpose
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
                factors = self._view.factors(to_rows, to_columns, self.dtype)
                found = found if factors is None else found * factors
                _assign(values, _shifted(to_rows, rows.start), _shifted(to_columns, columns.start), found)
        return self._with_diagonal(values, rows, columns)

    # -- what Gram requires -----------------------------------------------------------------------------------------

    def _form(self) -> Tensor:
        return self._piece(slice(0, self.shape[0]), slice(0, self.shape[1]))

    def _matmul(self, v: Tensor) -> Tensor:
        total = torch.zeros(self.shape[0], v.shape[1], dtype=torch.float64, device=self.device)
        left, right = self._view.rows.scale, self._view.columns.scale
        uses = self._uses()
        for tile, stored in self._ahead(uses):
            for to_rows, in_rows, to_columns, in_columns, flipped in uses[tile]:
                height, width = stored.shape[::-1] if flipped else stored.shape
                vectors = v[to_columns] if right is None else v[to_columns] * right[to_columns].to(v.dtype)[:, None]
                if not _covers(in_columns, width):
                    vectors = vectors.new_zeros(width, v.shape[1]).index_add_(
                        0, _numbers(in_columns).to(self.device), vectors
                    )
                found = (transposed_product if flipped else product)(stored, vectors).to(torch.float64)
                found = found if _covers(in_rows, height) else found[in_rows]
                found = found if left is None else found * left[to_rows][:, None]
                total[to_rows] += found  # the rows of a tile are chosen once each
        return total.to(torch.promote_types(self.dtype, v.dtype))

    def _diagonal(self) -> Tensor:
        raise StoreError(f"{self.store.url} has no row_diagonal, which a symmetric kernel keeps: fill the store again")

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        if (
            size is None and self._view.rows.chosen is None and self._view.columns.chosen is None
        ):  # each stored tile once
            uses = self._uses()
            for tile, stored in self._ahead(uses):
                for rows, _, columns, _, _ in uses[tile]:
                    yield rows, columns, self._piece(rows, columns, lambda uses, s=stored: ((t, s) for t in uses))
            return
        cache = _Cache(self._read)
        for rows in slices(self.shape[0], size or self.store.grid.size):
            for columns in slices(self.shape[1], size or self.store.grid.size):
                yield rows, columns, self._piece(rows, columns, cache)


def open_kernel(url: str | os.PathLike[str], *, partial: bool = False) -> Gram:
    """The kernel in the store at a folder or fsspec URL, as a Gram that reads its tiles when they are needed.

    An incomplete store is refused unless `partial=True`: then what is missing is NaN. A kernel of cosines is
    kept unnormalised, its label `normalize` says so, and it is divided as it is read; a partial one is not. A store of
    features (a projected kernel's) opens as the Gram of its features.

    Examples:
        >>> K = ns.kernel("trntk", model, x, store=folder)
        >>> open_kernel(folder)
        TiledGram('trntk', 12 × 12 symmetric, rows: samples, float32)
        >>> bool(open_kernel(folder).dense().equal(K.dense()))
        True
    """
    if kind_of(folder(url)) == FEATURES:
        return open_features(url)
    store = KernelStore.open(url)
    done, total = len(store.done()), len(store.grid)
    if done < total and not partial:
        raise StoreError(
            f"{store.url} is incomplete: {done} of {total} tiles are there; run again what filled it, or open what"
            " is there with partial=True"
        )
    found = TiledGram(store, partial=partial)
    return found.normalized() if store.labels.get("normalize") is True and not partial else found


class _Cache:
    """A cache of the last few tiles: neighbouring pieces come from the same ones."""

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


def _numbers(part: Index) -> Tensor:
    return torch.arange(part.start, part.stop) if isinstance(part, slice) else part


def _covers(part: Index, size: int) -> bool:
    """Whether a part is all of a tile's side, in order."""
    return isinstance(part, slice) and part.start == 0 and part.stop == size


def _shifted(part: Index, start: int) -> Index:
    return slice(part.start - start, part.stop - start) if isinstance(part, slice) else part - start


def _assign(values: Tensor, rows: Index, columns: Index, found: Tensor) -> None:
    if isinstance(rows, slice) or isinstance(columns, slice):
        values[rows, columns] = found
    else:
        values[rows[:, None], columns] = found


def _meta(store: KernelStore) -> dict[str, Any]:
    """What a store says about its kernel, including its certificate."""
    certificate = read_certificate(store.folder)
    return {**store.labels.get("meta", {}), **({} if certificate is None else {"certificate": certificate})}

"""A Gram of features on disk: `Φ₁ Φ₂ᵀ` with `K @ v` in passes over chunks of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import StoreError
from ntkscope.linalg.factored import FactoredGram
from ntkscope.linalg.gram import Gram, Index, Tile, slices
from ntkscope.linalg.mixed import product, transposed_product
from ntkscope.storage.certified import read_certificate
from ntkscope.storage.feature_store import FeatureStore

ROWS = 1024


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of features, on disk or in memory: some of them, each times a factor."""

    source: FeatureStore | Tensor
    chosen: Tensor | None = None  # by number; None: all, in order
    scale: Tensor | None = None

    def __len__(self) -> int:
        if self.chosen is not None:
            return len(self.chosen)
        return self.source.n if isinstance(self.source, FeatureStore) else len(self.source)

    @property
    def width(self) -> int:
        return self.source.width if isinstance(self.source, FeatureStore) else self.source.shape[1]

    @property
    def step(self) -> int:
        """How many rows are quick to read together."""
        return self.source.rows if isinstance(self.source, FeatureStore) else ROWS

    def take(self, index: Index) -> Rows:
        chosen = torch.arange(len(self)) if self.chosen is None else self.chosen
        return replace(self, chosen=chosen[index], scale=None if self.scale is None else self.scale[index])

    def scaled(self, factors: Tensor) -> Rows:
        return replace(self, scale=factors if self.scale is None else self.scale * factors)

    def read(self, part: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The features of a part of these rows."""
        numbers = torch.arange(part.start, part.stop) if self.chosen is None else self.chosen[part]
        if isinstance(self.source, Tensor):
            found = self.source[numbers.to(self.source.device)].to(device, dtype)
        else:
            found = torch.empty(len(numbers), self.width, dtype=dtype, device=device)
            chunks = numbers // self.source.rows
            for k in chunks.unique().tolist():
                here = (chunks == k).nonzero().flatten()
                found[here.to(device)] = self.source.read(k)[numbers[here] - k * self.source.rows].to(device, dtype)
        return found if self.scale is None else found.mul_(self.scale[part].to(device, dtype)[:, None])


@final
class StoredFeatureGram(Gram):
    """The kernel of features of which one side or both are on disk; `open_features` makes one.

    `K @ v` reads each side once, a chunk of rows at a time. Sub-matrices and cosines are views of the same files. `groups`
    as in `FactoredGram`, so that entries have a standard error.
    """

    _out_of_core = True

    def __init__(
        self,
        left: Rows,
        right: Rows | None = None,
        *,
        groups: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        symmetric: bool | None = None,
        name: str = "",
        rows: str = "samples",
        outputs: int = 1,
        row_diagonal: Tensor | None = None,
        column_diagonal: Tensor | None = None,
        coverage: Any | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        right = left if right is None else right
        super().__init__(
            (len(left), len(right)),
            dtype,
            torch.device(device),
            symmetric=right is left,
            name=name,
            rows=rows,
            outputs=outputs,
            row_diagonal=row_diagonal,
            column_diagonal=column_diagonal,
            coverage=coverage,
            meta=meta,
        )
        self._left, self._right, self.groups = left, right, groups

    def in_memory(self) -> FactoredGram:
        """The same with its features read; O((n + m) p) memory."""
        left = self._read(self._left, slice(0, self.shape[0]))
        right = None if self.symmetric else self._read(self._right, slice(0, self.shape[1]))
        return FactoredGram(left, right, groups=self.groups, **self._labels(symmetric=None))

    def standard_error(self, rows: Any = None, columns: Any = None) -> Float[Tensor, "n m"]:
        """As of `FactoredGram`, for chosen rows and columns (all)."""
        return self._part(rows, columns).standard_error()

    def confidence_interval(
        self, level: float | int = 0.95, rows: Any = None, columns: Any = None
    ) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """As of `FactoredGram`, for chosen rows and columns (all)."""
        return self._part(rows, columns).confidence_interval(level)

    def _part(self, rows: Any, columns: Any) -> FactoredGram:
        part = self[slice(None) if rows is None else rows, slice(None) if columns is None else columns]
        assert isinstance(part, StoredFeatureGram)
        return part.in_memory()

    def _read(self, side: Rows, part: slice) -> Tensor:
        return side.read(part, self.dtype, self.device)

    def _matmul(self, v: Tensor) -> Tensor:
        dtype = torch.promote_types(self.dtype, v.dtype)
        middle = torch.zeros(self._right.width, v.shape[1], dtype=torch.float64, device=self.device)
        for part in slices(self.shape[1], self._right.step):
            middle += transposed_product(self._read(self._right, part), v[part])
        middle = middle.to(dtype)
        found = torch.empty(self.shape[0], v.shape[1], dtype=dtype, device=self.device)
        for part in slices(self.shape[0], self._left.step):
            found[part] = product(self._read(self._left, part), middle)
        return found

    def _diagonal(self) -> Tensor:
        parts = [self._read(self._left, part) for part in slices(self.shape[0], self._left.step)]
        squares = [part.double().square().sum(1).to(self.dtype) for part in parts]
        return torch.cat([torch.zeros(0, dtype=self.dtype, device=self.device), *squares])

    def _form(self) -> Tensor:
        values = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for rows, columns, tile in self._tiles(None):
            values[rows, columns] = tile
        if self.symmetric:
            values = self._with_diagonal((values + values.T) / 2, slice(0, self.shape[0]), slice(0, self.shape[0]))
        return values

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        if self.symmetric:
            self._row_diagonal = self.row_diagonal  # known from here on, so that tiles carry it
        for rows in slices(self.shape[0], size or max(self._left.step, ROWS)):
            left = self._read(self._left, rows)
            for columns in slices(self.shape[1], size or max(self._right.step, ROWS)):
                right = left if self.symmetric and columns == rows else self._read(self._right, columns)
                yield rows, columns, self._with_diagonal(left @ right.T, rows, columns)

    def _transposed(self) -> Gram:
        return self._again(self._right, self._left, self._swapped_labels())

    def _select(self, rows: Index, columns: Index, labels: dict[str, Any]) -> Gram:
        rows, columns = (index if isinstance(index, slice) else index.cpu() for index in (rows, columns))
        right = None if labels["symmetric"] else self._right.take(columns)
        return self._again(self._left.take(rows), right, labels)

    def _normalized(self, rows: Tensor, columns: Tensor) -> Gram:
        right = None if self.symmetric else self._right.scaled(columns.cpu())
        return self._again(self._left.scaled(rows.cpu()), right, self._unit_labels())

    def _eigenvalues(self) -> Tensor:
        return self.in_memory().eigvalsh()

    def _moved(self, dtype: torch.dtype, device: torch.device, labels: dict[str, Any]) -> Gram:
        right = None if self.symmetric else self._right
        return StoredFeatureGram(self._left, right, groups=self.groups, dtype=dtype, device=device, **labels)

    def _again(self, left: Rows, right: Rows | None, labels: dict[str, Any]) -> Gram:
        return StoredFeatureGram(left, right, groups=self.groups, dtype=self.dtype, device=self.device, **labels)


def open_features(url: str | os.PathLike[str], left: Tensor | None = None, **labels: Any) -> Gram:
    """The kernel of the features in a store with themselves, or of the features `left` with them; cosines where its label
    `normalize` says so."""
    store = FeatureStore.open(url)
    done = len(store.done())
    if done < len(store):
        raise StoreError(
            f"{store.url} is incomplete: {done} of {len(store)} chunks are there; run again what filled it"
        )
    said = {
        "name": store.labels.get("name", ""),
        "meta": {**store.labels.get("meta", {}), "certificate": read_certificate(store.folder)},
        "groups": store.labels.get("groups", 1),
        "dtype": store.dtype,
        **labels,
    }
    norms = store.squared_norms().to(store.dtype)
    stored = Rows(store)
    if left is None:
        found = StoredFeatureGram(stored, row_diagonal=norms, **said)
    else:
        own = torch.linalg.vector_norm(left, dim=1, dtype=torch.float64).square().to(store.dtype).cpu()
        found = StoredFeatureGram(Rows(left), stored, row_diagonal=own, column_diagonal=norms, **said)
    return found.normalized() if store.labels.get("normalize") is True else found

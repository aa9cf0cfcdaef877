"""A Gram of features on disk: `Φ₁ Φ₂ᵀ` with `K @ v` in passes over chunks of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.errors import StoreError
from ntkscope.linalg.grams.factored import FactoredGram
from ntkscope.linalg.grams.gram import Gram, Tile, slices
from ntkscope.linalg.grams.labels import NONE, Labels, LabelWords
from ntkscope.linalg.grams.mixed import product, transposed_product
from ntkscope.linalg.grams.view import Side
from ntkscope.storage.certified import read_certificate
from ntkscope.storage.feature_store import FeatureStore

ROWS = 1024


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of features, on disk or in memory."""

    source: FeatureStore | Tensor

    def __len__(self) -> int:
        return self.source.n if isinstance(self.source, FeatureStore) else len(self.source)

    @property
    def width(self) -> int:
        return self.source.width if isinstance(self.source, FeatureStore) else self.source.shape[1]

    @property
    def step(self) -> int:
        """How many rows are efficient to read together."""
        return self.source.rows if isinstance(self.source, FeatureStore) else ROWS

    def read(self, side: Side, part: slice, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "rows width"]:
        """The features of a part of what `side` shows of these rows."""
        numbers = torch.arange(part.start, part.stop) if side.chosen is None else side.numbers()[part]
        if isinstance(self.source, Tensor):
            features = self.source[numbers.to(self.source.device)].to(device, dtype)
        else:
            features = torch.empty(len(numbers), self.width, dtype=dtype, device=device)
            chunks = numbers // self.source.rows
            for k in chunks.unique().tolist():
                here = (chunks == k).nonzero().flatten()
                features[here.to(device)] = self.source.read(k)[numbers[here] - k * self.source.rows].to(device, dtype)
        return features if side.scale is None else features.mul_(side.scale[part].to(device, dtype)[:, None])


@final
class StoredFeatureGram(Gram):
    """The kernel of features of which one side or both are on disk; `open_features` returns one.

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
        labels: Labels = NONE,
        **words: Unpack[LabelWords],
    ) -> None:
        labels = labels.but(**words)
        if labels.symmetric and right is not None:
            raise UsageError("got symmetric=True with two sets of features; leave `right` out")
        symmetric = right is None and labels.symmetric is not False
        right = left if right is None else right
        if left.width != right.width:
            raise UsageError(
                f"got features of widths {left.width} and {right.width}; expected the same width on both sides"
            )
        self._left, self._right, self.groups = left, right, groups
        if symmetric and labels.row_diagonal is None:
            labels = labels.but(row_diagonal=_squared_norms(left, dtype, torch.device(device)))
        super().__init__((len(left), len(right)), dtype, torch.device(device), labels.but(symmetric=symmetric))

    def in_memory(self) -> FactoredGram:
        """The same with its features read; O((n + m) p) memory."""
        left = self._rows(slice(0, self.shape[0]))
        right = None if self.symmetric else self._columns(slice(0, self.shape[1]))
        return FactoredGram(left, right, groups=self.groups, labels=self.labels)

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

    def _rows(self, part: slice) -> Tensor:
        source, _ = self._view.sources(self._left, self._right)
        return source.read(self._view.rows, part, self.dtype, self.device)

    def _columns(self, part: slice) -> Tensor:
        _, source = self._view.sources(self._left, self._right)
        return source.read(self._view.columns, part, self.dtype, self.device)

    def _steps(self) -> tuple[int, int]:
        left, right = self._view.sources(self._left, self._right)
        return left.step, right.step

    def _matmul(self, v: Tensor) -> Tensor:
        dtype = torch.promote_types(self.dtype, v.dtype)
        down, across = self._steps()
        middle = torch.zeros(self._left.width, v.shape[1], dtype=torch.float64, device=self.device)
        for part in slices(self.shape[1], across):
            middle += transposed_product(self._columns(part), v[part])
        middle = middle.to(dtype)
        products = torch.empty(self.shape[0], v.shape[1], dtype=dtype, device=self.device)
        for part in slices(self.shape[0], down):
            products[part] = product(self._rows(part), middle)
        return products

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        down, across = (size or max(step, ROWS) for step in self._steps())
        for rows in slices(self.shape[0], down):
            left = self._rows(rows)
            for columns in slices(self.shape[1], across):
                right = left if self.symmetric and columns == rows else self._columns(columns)
                yield rows, columns, self._with_diagonal(left @ right.T, rows, columns)

    def _eigenvalues(self) -> Tensor:
        return self.in_memory().eigvalsh()


def _squared_norms(rows: Rows, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`‖φ(x_i)‖²`, summed in float64; one pass over the rows."""
    parts = (rows.read(Side(len(rows)), part, dtype, device) for part in slices(len(rows), rows.step))
    squares = [part.double().square().sum(1).to(dtype) for part in parts]
    return torch.cat([torch.zeros(0, dtype=dtype, device=device), *squares])


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

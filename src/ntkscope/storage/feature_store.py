"""`FeatureStore`: features of inputs on disk, several rows per chunk, with what their numbers depend on.

A zarr version 3 group: array `features` (n, width), chunks of whole rows, and `squared_norms` (n,) in float64, crc32c after
each chunk. The group's attributes say the rest in JSON, with a checksum. A chunk is written atomically, and sealed to
its place and store, as the tiles of a kernel store are.
"""

from __future__ import annotations

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
from ntkscope.core.identity import Answers, machine
from ntkscope.linalg.grams.tiling import Grid, TileSource
from ntkscope.storage._base import Store, checked_entries
from ntkscope.storage._files import Folder, folder
from ntkscope.storage._zarr import ChunkedArray, differences, dtype_named, whole_number

KIND = "ntkscope features"
LARGEST_CHUNK = 1 << 34  # bytes of a chunk that is accepted
MOST_CHUNKS = 1 << 24  # chunks of a store that is accepted


@dataclass(frozen=True)
class FeatureStore(Store):
    """Features of n inputs in a folder or at an fsspec URL, `rows` of them per chunk. It pickles, and holds no open files.

    Examples:
        >>> K = ns.kernel("proj-trntk", model, x, dim=64, store=folder)
        >>> store = FeatureStore.open(folder)
        >>> store.n, store.width, len(store), store.missing(), store.read(0).shape
        (12, 128, 1, [], torch.Size([12, 128]))
    """

    folder: Folder
    n: int
    width: int
    rows: int
    dtype: torch.dtype
    labels: Mapping[str, Any]
    fingerprint: Mapping[str, str]
    answers: Answers | None = None

    kind, named = KIND, "store of features"

    @classmethod
    def prepare(
        cls,
        url: str | os.PathLike[str],
        *,
        n: int,
        width: int,
        rows: int,
        dtype: torch.dtype,
        labels: Mapping[str, Any],
        fingerprint: Mapping[str, str],
        answers: Callable[[], Answers] | None = None,
    ) -> FeatureStore:
        """A new store, or the existing one if nothing the numbers depend on differs and the network still gives the
        `answers` that were kept when it was created."""
        new = cls(folder(url), n, width, min(rows, n), dtype, dict(labels), dict(fingerprint))
        return new.begun(lambda: None if answers is None else answers())

    @property
    def grid(self) -> Grid:
        """(n, width) features in chunks of whole rows."""
        return Grid(self.n, self.width, self.rows, across=self.width)

    def require(self, source: TileSource | FeatureStore) -> None:
        found = differences(self.fingerprint, source.fingerprint)
        mine, theirs = (
            {"inputs": each.grid.n, "width": each.grid.m, "dtype": str(each.dtype)} for each in (self, source)
        )
        found += differences(mine, theirs)
        if found:
            raise StoreError(
                f"{self.url} holds other features: {'; '.join(found)}; resume with what they were computed from, or choose"
                " another folder"
            )

    def compare_chunk(self, k: int, features: Float[Tensor, "rows width"], device: torch.device | str = "cpu") -> None:
        """Raise an error unless these are the features of chunk k: bit for bit if the same kind of machine computed them on a
        CPU, else up to rounding."""
        self._compare(f"chunk {k}", self.read(k), features, self._features.computed_on((k, 0)), device)

    def __len__(self) -> int:
        """The number of chunks."""
        return -(-self.n // self.rows)

    def span(self, k: int) -> slice:
        """The inputs of chunk k."""
        if not 0 <= k < len(self):
            raise UsageError(f"got chunk {k}; expected one of {len(self)}")
        return slice(k * self.rows, min(self.n, (k + 1) * self.rows))

    def done(self) -> set[int]:
        """The existing chunks, judged by their names and sizes."""
        norms = {k for (k,), size in self._norms.present().items() if size == self._norms.size}
        return {k for (k, _), size in self._features.present().items() if size == self._features.size} & norms

    def missing(self) -> list[int]:
        """The missing chunks."""
        done = self.done()
        return [k for k in range(len(self)) if k not in done]

    def has(self, k: int) -> bool:
        """Whether this chunk exists completely, without listing the others."""
        sizes = ((array, array.key(at)) for array, at in ((self._features, (k, 0)), (self._norms, (k,))))
        return all(self.folder.size(key) == array.size for array, key in sizes)

    def write(self, k: int, features: Float[Tensor, "rows width"], device: torch.device | str = "cpu") -> None:
        """Keep one chunk; an existing one is replaced by the same bits. `device`: where it was computed."""
        span = self.span(k)
        expected = (span.stop - span.start, self.width)
        if tuple(features.shape) != expected or features.dtype != self.dtype:
            raise UsageError(
                f"got chunk {k} as {features.dtype} of shape {tuple(features.shape)}; expected {self.dtype} of shape"
                f" {expected}"
            )
        norms = torch.linalg.vector_norm(features, dim=1, dtype=torch.float64).square()
        if not bool(torch.isfinite(norms).all()):
            bad = (~torch.isfinite(norms)).nonzero().flatten()[:10] + span.start
            raise NumericalError(f"the features of inputs {bad.tolist()} hold NaN or infinity; check those inputs")
        here = machine(device)
        self._norms.put((k,), norms, here)
        self._features.put((k, 0), features, here)  # last: features that exist have their norms

    def read(self, k: int) -> Float[Tensor, "rows width"]:
        """One chunk, its checksum verified."""
        values = self._features.get((k, 0))
        if values is None:
            raise StoreError(
                f"chunk {k} of {self.url} is missing ({len(self.done())} of {len(self)} are there): run again what filled it"
            )
        return values

    def damaged(self) -> list[int]:
        """The existing chunks whose bytes, or those of their norms, are wrong; reads everything."""
        bad = []
        for k in sorted(self.done()):
            try:
                self.read(k)
                self._norms.get((k,))
            except DamagedTile:
                bad.append(k)
        return bad

    def drop(self, k: int) -> None:
        """Remove one chunk."""
        self._features.remove((k, 0))

    def squared_norms(self) -> Float[Tensor, " n"]:
        """`‖φ(x_i)‖²` in float64."""
        present = len(self._norms.present())
        if present < len(self):
            raise StoreError(
                f"{self.url} is incomplete: the norms of {present} of {len(self)} chunks are there; run again what filled it"
            )
        pieces = [self._norms.get((k,)) for k in range(len(self))]
        absent = [k for k, piece in enumerate(pieces) if piece is None]
        if absent:
            raise StoreError(f"{self.url} is incomplete: chunks {absent[:10]} are missing; run again what filled it")
        return torch.cat([piece for piece in pieces if piece is not None])

    @cached_property
    def _features(self) -> ChunkedArray:
        return ChunkedArray(
            self.folder, "features", (self.n, self.width), (self.rows, self.width), self.dtype, self._id
        )

    @cached_property
    def _norms(self) -> ChunkedArray:
        return ChunkedArray(self.folder, "squared_norms", (self.n,), (self.rows,), torch.float64, self._id)

    @property
    def _arrays(self) -> list[ChunkedArray]:
        return [self._features, self._norms]

    def _shape(self) -> dict[str, Any]:
        return {"n": self.n, "width": self.width, "rows": self.rows}

    @classmethod
    def validated(cls, place: Folder, attributes: Mapping[str, Any]) -> FeatureStore:
        where = place.url
        n, width, rows = (whole_number(attributes.get(name), name, where) for name in ("n", "width", "rows"))
        dtype = dtype_named(attributes.get("dtype"), where)
        if rows > n or rows * width * torch.finfo(dtype).bits // 8 > LARGEST_CHUNK:
            raise StoreError(
                f"{where}: chunks of {rows} × {width} for {n} inputs; expected at most {LARGEST_CHUNK} bytes"
            )
        if -(-n // rows) > MOST_CHUNKS:
            raise StoreError(
                f"{where}: {n} inputs in chunks of {rows}; expected at most {MOST_CHUNKS} chunks: larger ones"
            )
        labels, fingerprint, answers = checked_entries(attributes, where)
        groups = whole_number(labels.get("groups", 1), "labels.groups", where)
        if width % groups:
            raise StoreError(f"{where}: labels.groups is {groups} for {width} features; expected a divisor")
        return cls(place, n, width, rows, dtype, labels, fingerprint, answers)

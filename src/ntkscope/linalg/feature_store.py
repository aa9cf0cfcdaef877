"""`FeatureStore`: features of inputs on disk, some rows a chunk, with what their numbers depend on.

A zarr version 3 group: array `features` (n, width), chunks of whole rows, and `squared_norms` (n,) in float64, crc32c after
each chunk. The group's attributes say the rest in JSON. Rows are there whole or not at all, as the tiles of a kernel store are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, StoreError, UsageError
from ntkscope.linalg._files import Folder, folder
from ntkscope.linalg._zarr import (
    DTYPES,
    ChunkedArray,
    attributes_of,
    differences,
    dtype_named,
    put_attributes,
    whole_number,
)

KIND = "ntkscope features"
SCHEMA = 1
LARGEST_CHUNK = 1 << 34  # bytes of a chunk that is believed


@dataclass(frozen=True)
class FeatureStore:
    """Features of n inputs in a folder or behind an fsspec URL, `rows` of them a chunk. It pickles, and holds nothing open."""

    folder: Folder
    n: int
    width: int
    rows: int
    dtype: torch.dtype
    labels: Mapping[str, Any]
    fingerprint: Mapping[str, str]

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
    ) -> FeatureStore:
        """A new store, or the one that is there if nothing the numbers depend on differs."""
        if dtype not in DTYPES:
            raise UsageError(f"features in {dtype} came for a store; expected one of {', '.join(map(str, DTYPES))}")
        place = folder(url)
        new = cls(place, n, width, min(rows, n), dtype, dict(labels), dict(fingerprint))
        _validated(place, new._attributes())  # what could not be read again is not written
        if attributes_of(place, KIND, SCHEMA) is None:
            names = place.names()
            if names and attributes_of(place, KIND, SCHEMA) is None:  # else somebody has begun it this moment
                raise StoreError(
                    f"{place.url} is no store of features and not empty ({', '.join(names[:5])}); expected a new or empty"
                    " folder, or a store of features"
                )
            put_attributes(place, new._attributes())
        stored = cls.open(url)
        found = differences(stored.fingerprint, new.fingerprint)
        found += differences(*({"inputs": s.n, "width": s.width, "dtype": str(s.dtype)} for s in (stored, new)))
        if found:
            raise StoreError(
                f"{place.url} holds other features: {'; '.join(found)}; continue with what they were made from, or choose"
                " another folder"
            )
        for array in (stored._features, stored._norms):
            array.put_metadata()
        return stored

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> FeatureStore:
        """The store at `url`; an error where there is none."""
        found = cls.find(url)
        if found is None:
            raise StoreError(f"there is no store of features at {folder(url).url}; expected one written with store=")
        return found

    @classmethod
    def find(cls, url: str | os.PathLike[str]) -> FeatureStore | None:
        """The store at `url`, None where nothing is; an error where something else is."""
        place = folder(url)
        attributes = attributes_of(place, KIND, SCHEMA)
        return None if attributes is None else _validated(place, attributes)

    @property
    def url(self) -> str:
        """Where it is."""
        return self.folder.url

    def __len__(self) -> int:
        """How many chunks there are."""
        return -(-self.n // self.rows)

    def span(self, k: int) -> slice:
        """The inputs of chunk k."""
        if not 0 <= k < len(self):
            raise UsageError(f"chunk {k} came; expected one of {len(self)}")
        return slice(k * self.rows, min(self.n, (k + 1) * self.rows))

    def done(self) -> set[int]:
        """The chunks that are there, by their names and sizes."""
        norms = {k for (k,), size in self._norms.present().items() if size == self._norms.size}
        return {k for (k, _), size in self._features.present().items() if size == self._features.size} & norms

    def missing(self) -> list[int]:
        """The chunks that are not there."""
        done = self.done()
        return [k for k in range(len(self)) if k not in done]

    def write(self, k: int, features: Float[Tensor, "rows width"]) -> None:
        """Keep one chunk; what is there already is replaced by the same bits."""
        span = self.span(k)
        expected = (span.stop - span.start, self.width)
        if tuple(features.shape) != expected or features.dtype != self.dtype:
            raise UsageError(
                f"chunk {k} came as {features.dtype} of shape {tuple(features.shape)}; expected {self.dtype} of shape"
                f" {expected}"
            )
        norms = torch.linalg.vector_norm(features, dim=1, dtype=torch.float64).square()
        if not bool(torch.isfinite(norms).all()):
            bad = (~torch.isfinite(norms)).nonzero().flatten()[:10] + span.start
            raise NumericalError(f"the features of inputs {bad.tolist()} hold NaN or infinity; look at those inputs")
        self._norms.put((k,), norms)
        self._features.put((k, 0), features)  # last: where the features are, their norms are

    def read(self, k: int) -> Float[Tensor, "rows width"]:
        """One chunk, its checksum verified."""
        values = self._features.get((k, 0))
        if values is None:
            raise StoreError(
                f"chunk {k} of {self.url} is not there ({len(self.done())} of {len(self)} are): run again what filled it"
            )
        return values

    def drop(self, k: int) -> None:
        """Forget one chunk."""
        self._features.remove((k, 0))

    def squared_norms(self) -> Float[Tensor, " n"]:
        """`‖φ(x_i)‖²` in float64."""
        pieces = [self._norms.get((k,)) for k in range(len(self))]
        absent = [k for k, piece in enumerate(pieces) if piece is None]
        if absent:
            raise StoreError(f"{self.url} is incomplete: chunks {absent[:10]} are not there; run again what filled it")
        return torch.cat([piece for piece in pieces if piece is not None])

    @cached_property
    def _features(self) -> ChunkedArray:
        return ChunkedArray(self.folder, "features", (self.n, self.width), (self.rows, self.width), self.dtype)

    @cached_property
    def _norms(self) -> ChunkedArray:
        return ChunkedArray(self.folder, "squared_norms", (self.n,), (self.rows,), torch.float64)

    def _attributes(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "n": self.n,
            "width": self.width,
            "rows": self.rows,
            "dtype": str(self.dtype).split(".")[1],
            "labels": dict(self.labels),
            "fingerprint": dict(self.fingerprint),
        }


def _validated(place: Folder, attributes: Mapping[str, Any]) -> FeatureStore:
    """A store from attributes anyone may have written: every entry is looked at before it is used."""
    where = place.url
    n, width, rows = (whole_number(attributes.get(name), name, where) for name in ("n", "width", "rows"))
    dtype = dtype_named(attributes.get("dtype"), where)
    if rows > n or rows * width * torch.finfo(dtype).bits // 8 > LARGEST_CHUNK:
        raise StoreError(f"{where}: chunks of {rows} × {width} for {n} inputs; expected at most {LARGEST_CHUNK} bytes")
    labels, fingerprint = attributes.get("labels"), attributes.get("fingerprint")
    if not isinstance(labels, Mapping) or not isinstance(labels.get("meta", {}), Mapping):
        raise StoreError(f"{where}: labels are {labels!r}; expected a mapping")
    if not isinstance(fingerprint, Mapping) or not all(isinstance(value, str) for value in fingerprint.values()):
        raise StoreError(f"{where}: the fingerprint is {fingerprint!r}; expected a mapping to texts")
    groups = whole_number(labels.get("groups", 1), "labels.groups", where)
    if width % groups:
        raise StoreError(f"{where}: labels.groups is {groups} for {width} features; expected a divisor")
    return FeatureStore(place, n, width, rows, dtype, dict(labels), dict(fingerprint))

"""`FeatureStore`: features of inputs on disk, several rows per chunk, with what their numbers depend on.

A zarr version 3 group: array `features` (n, width), chunks of whole rows, and `squared_norms` (n,) in float64, crc32c after
each chunk. The group's attributes say the rest in JSON, with a checksum. A chunk is written atomically, and sealed to
its place and store, as the tiles of a kernel store are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import DamagedTile, NumericalError, StoreError, UsageError
from ntkscope.core.identity import Answers, disagreement, machine, tolerance
from ntkscope.core.identity.answers import DIFFERENT
from ntkscope.core.schema import shown
from ntkscope.storage._files import Folder, folder
from ntkscope.storage._zarr import (
    DTYPES,
    ChunkedArray,
    attributes_checksum,
    attributes_of,
    differences,
    dtype_named,
    put_attributes,
    whole_number,
)

KIND = "ntkscope features"
SCHEMA = 2
LARGEST_CHUNK = 1 << 34  # bytes of a chunk that is accepted
MOST_CHUNKS = 1 << 24  # chunks of a store that is accepted


@dataclass(frozen=True)
class FeatureStore:
    """Features of n inputs in a folder or at an fsspec URL, `rows` of them per chunk. It pickles, and holds no open files."""

    folder: Folder
    n: int
    width: int
    rows: int
    dtype: torch.dtype
    labels: Mapping[str, Any]
    fingerprint: Mapping[str, str]
    answers: Answers | None = None

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
        if dtype not in DTYPES:
            raise UsageError(f"got features in {dtype} for a store; expected one of {', '.join(map(str, DTYPES))}")
        place = folder(url)
        new = cls(place, n, width, min(rows, n), dtype, dict(labels), dict(fingerprint))
        before = attributes_of(place, KIND, SCHEMA)
        if before is not None:
            _validated(place, before)._require(new)  # before the network is run
        now = None if answers is None else answers()
        new = replace(new, answers=now)
        _validated(place, new._attributes())  # never write what could not be read back
        if before is None:
            names = place.names()
            if names and attributes_of(place, KIND, SCHEMA) is None:  # else another process has just created it
                raise StoreError(
                    f"{place.url} is neither a store of features nor empty ({', '.join(names[:5])}); expected a new or empty"
                    " folder, or a store of features"
                )
            put_attributes(place, new._attributes())
        stored = cls.open(url)
        stored._require(new)
        stored.compare_answers(now)
        for array in (stored._features, stored._norms):
            array.put_metadata()
        return stored

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> FeatureStore:
        """The store at `url`; an error if there is none."""
        found = cls.find(url)
        if found is None:
            raise StoreError(f"there is no store of features at {folder(url).url}; expected one written with store=")
        return found

    @classmethod
    def find(cls, url: str | os.PathLike[str]) -> FeatureStore | None:
        """The store at `url`, None if there is nothing; an error if there is something else."""
        place = folder(url)
        attributes = attributes_of(place, KIND, SCHEMA)
        return None if attributes is None else _validated(place, attributes)

    def _require(self, other: FeatureStore) -> None:
        self.require(other.fingerprint, other.n, other.width, other.dtype)

    def require(self, fingerprint: Mapping[str, str], n: int, width: int, dtype: torch.dtype) -> None:
        """Raise an error that names every difference, unless these are the features this store holds."""
        found = differences(self.fingerprint, fingerprint)
        mine = {"inputs": self.n, "width": self.width, "dtype": str(self.dtype)}
        found += differences(mine, {"inputs": n, "width": width, "dtype": str(dtype)})
        if found:
            raise StoreError(
                f"{self.url} holds other features: {'; '.join(found)}; resume with what they were computed from, or choose"
                " another folder"
            )

    def compare_answers(self, now: Answers | None) -> None:
        """Raise an error unless the network gives the answers that were kept when the store was created."""
        if (self.answers is None) != (now is None):
            raise StoreError(
                f"{self.url} {'has no' if self.answers is None else 'has'} answers of a network; {DIFFERENT}"
            )
        if self.answers is not None and now is not None:
            self.answers.compare(now, self.url, self._coarse)

    def compare_chunk(self, k: int, features: Float[Tensor, "rows width"], device: torch.device | str = "cpu") -> None:
        """Raise an error unless these are the features of chunk k: bit for bit if the same kind of machine computed them on a
        CPU, else up to rounding."""
        here = machine(device)
        exact = here.startswith("cpu") and self._features.computed_on((k, 0)) == here and not self._coarse
        allowed = 0.0 if exact else tolerance(self.dtype, self._coarse)
        found = disagreement(self.read(k), features.to(self.dtype).cpu(), allowed)
        if found:
            raise StoreError(f"{self.url}: chunk {k}, computed again, and the stored one {found}; {DIFFERENT}")

    @property
    def _coarse(self) -> bool:
        """Whether products were computed in fewer digits than the numbers have."""
        return self.fingerprint.get("precision", "exact") != "exact"

    @property
    def url(self) -> str:
        """The address of the store."""
        return self.folder.url

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
    def _id(self) -> str:
        return attributes_checksum(self._attributes())

    @cached_property
    def _features(self) -> ChunkedArray:
        return ChunkedArray(
            self.folder, "features", (self.n, self.width), (self.rows, self.width), self.dtype, self._id
        )

    @cached_property
    def _norms(self) -> ChunkedArray:
        return ChunkedArray(self.folder, "squared_norms", (self.n,), (self.rows,), torch.float64, self._id)

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
            "answers": None if self.answers is None else self.answers.to_json(),
        }


def _validated(place: Folder, attributes: Mapping[str, Any]) -> FeatureStore:
    """A store from attributes anyone may have written: every entry is checked before it is used."""
    where = place.url
    n, width, rows = (whole_number(attributes.get(name), name, where) for name in ("n", "width", "rows"))
    dtype = dtype_named(attributes.get("dtype"), where)
    if rows > n or rows * width * torch.finfo(dtype).bits // 8 > LARGEST_CHUNK:
        raise StoreError(f"{where}: chunks of {rows} × {width} for {n} inputs; expected at most {LARGEST_CHUNK} bytes")
    if -(-n // rows) > MOST_CHUNKS:
        raise StoreError(f"{where}: {n} inputs in chunks of {rows}; expected at most {MOST_CHUNKS} chunks: larger ones")
    labels, fingerprint = attributes.get("labels"), attributes.get("fingerprint")
    if not isinstance(labels, Mapping) or not isinstance(labels.get("meta", {}), Mapping):
        raise StoreError(f"{where}: labels are {shown(labels)}; expected a mapping with a mapping `meta`")
    if not isinstance(fingerprint, Mapping) or not all(isinstance(value, str) for value in fingerprint.values()):
        raise StoreError(f"{where}: the fingerprint is {shown(fingerprint)}; expected a mapping to texts")
    if not isinstance(labels.get("name", ""), str):
        raise StoreError(f"{where}: labels.name is {shown(labels['name'])}; expected a text")
    groups = whole_number(labels.get("groups", 1), "labels.groups", where)
    if width % groups:
        raise StoreError(f"{where}: labels.groups is {groups} for {width} features; expected a divisor")
    answers = attributes.get("answers")
    kept = None if answers is None else Answers.from_json(answers, where)
    return FeatureStore(place, n, width, rows, dtype, dict(labels), dict(fingerprint), kept)

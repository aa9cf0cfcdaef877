"""Chunked arrays as zarr version 3 keeps them, in a folder or behind any fsspec URL: every chunk checked.

zarr writes the metadata, so any zarr reader opens what is written here. The chunks are written by this file: the values in
row-major little-endian order, and their crc32c after them, which is what zarr's `bytes` and `crc32c` codecs say. So a
chunk of zeros is written like any other, an absent one is seen as absent, and a damaged one can be named.

Beside each chunk, where zarr readers do not look, lies its seal: a hash of the store, the array, the chunk's place and its
crc32c, and the kind of machine that computed it. A chunk that was copied from another place or another store is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.errors import DamagedTile, StoreError
from ntkscope.core.files.safe_files import parse_json
from ntkscope.core.files.schema import shown
from ntkscope.core.numerics import names_numerics
from ntkscope.storage._files import Folder, optional
from ntkscope.storage._files import folder as folder  # so that each kind of store finds all it needs here

Index: TypeAlias = tuple[int, ...]
DTYPES = {torch.float16: "<f2", torch.float32: "<f4", torch.float64: "<f8"}
DOCUMENT = "zarr.json"
CHECKSUM = 4  # bytes of the crc32c after the values of a chunk
SEAL = 16  # bytes of the hash that binds a chunk to its place; the machine's name follows it
LARGEST_SEAL = 64
CHECKED = "checksum"  # the attribute with the checksum of all others
LARGEST_DOCUMENT = 1 << 26  # bytes of a zarr.json that is read
LARGEST = 1 << 48  # no side, chunk or count of a store above this is accepted
REMEDY = "fill the store again, which recomputes this piece"


@dataclass(frozen=True)
class ChunkedArray:
    """One array of a store: chunks of `chunks` entries, the last ones padded with NaN as zarr requires."""

    folder: Folder
    name: str
    shape: Index
    chunks: Index
    dtype: torch.dtype
    store: str = ""
    """What the seals bind a chunk to: the checksum of the store's attributes."""

    def key(self, index: Index) -> str:
        """The file of a chunk, as zarr's default encoding names it."""
        return "/".join([self.name, "c", *map(str, index)])

    def seal_key(self, index: Index) -> str:
        """The file of a chunk's seal."""
        return "/".join([self.name, "seal", *map(str, index)])

    @property
    def size(self) -> int:
        """Bytes of every chunk, its checksum included."""
        return math.prod(self.chunks) * torch.finfo(self.dtype).bits // 8 + CHECKSUM

    def put_metadata(self) -> None:
        """Write what zarr readers need, if it is missing."""
        key = f"{self.name}/{DOCUMENT}"
        document = array_document(self.shape, self.chunks, self.dtype)
        stored = self.folder.get(key, LARGEST_DOCUMENT)
        if stored is None or bytes(stored) != document:
            self.folder.put(key, document)

    def put(self, index: Index, values: Tensor, machine: str = "") -> None:
        """Write one chunk; `values` may be smaller than a chunk at the array's end. `machine`: what computed them."""
        array = values.detach().to("cpu", self.dtype).contiguous().numpy().astype(DTYPES[self.dtype], copy=False)
        if array.shape != self.chunks:
            whole = np.full(self.chunks, np.nan, dtype=DTYPES[self.dtype])
            whole[tuple(map(slice, array.shape))] = array
            array = whole
        raw = array.reshape(-1).view(np.uint8)
        summed = checksum(raw)
        self.folder.put(self.seal_key(index), self._seal(index, summed, machine.encode()))
        self.folder.put(self.key(index), raw, summed)  # last: a chunk that exists has its seal

    def get(self, index: Index) -> Tensor | None:
        """One chunk, its checksum verified, cut to the array's end; None if it is absent."""
        data = self.folder.get(self.key(index), self.size + 1)
        if data is None:
            return None
        where = f"chunk {index} of {self.name!r}, {self.folder.name(self.key(index))},"
        if len(data) != self.size:
            found = len(data) if len(data) < self.size else "too many"
            raise DamagedTile(f"{where} has {found} bytes; expected {self.size}: {REMEDY}")
        raw = np.frombuffer(data, dtype=np.uint8)
        if checksum(raw[:-CHECKSUM]) != bytes(data[-CHECKSUM:]):
            raise DamagedTile(f"{where} is not what was written (its crc32c differs): {REMEDY}")
        if self.computed_on(index, bytes(data[-CHECKSUM:])) is None:
            raise DamagedTile(
                f"{where} was not written for this place of this store (its seal differs), but copied there: {REMEDY}"
            )
        stored = raw[:-CHECKSUM].view(DTYPES[self.dtype])
        values = stored if sys.byteorder == "little" else stored.astype(stored.dtype.newbyteorder("="))
        ends = (min(c, s - i * c) for i, c, s in zip(index, self.chunks, self.shape))
        return torch.from_numpy(values.reshape(self.chunks))[tuple(map(slice, ends))]

    def computed_on(self, index: Index, summed: bytes | None = None) -> str | None:
        """The machine that computed a chunk, as its seal says; None where the seal is not this chunk's."""
        if summed is None:
            data = self.folder.get(self.key(index), self.size + 1)
            summed = b"" if data is None else bytes(data[-CHECKSUM:])
        seal = bytes(self.folder.get(self.seal_key(index), LARGEST_SEAL) or b"")
        machine = seal[SEAL:]
        return machine.decode("ascii", "replace") if seal == self._seal(index, summed, machine) else None

    def _seal(self, index: Index, summed: bytes, machine: bytes) -> bytes:
        bound = f"{self.store} {self.name} {index} {summed.hex()} ".encode() + machine
        return hashlib.blake2b(bound, digest_size=SEAL).digest() + machine

    def present(self) -> dict[Index, int]:
        """The existing chunks and the size of each in bytes; names that are not chunks of this array are left out."""
        counts = [-(-s // c) for s, c in zip(self.shape, self.chunks)]
        found: dict[Index, int] = {}
        for key, size in self.folder.sizes(f"{self.name}/c").items():
            parts = key.removeprefix(f"{self.name}/c/").split("/")
            if len(parts) == len(counts) and all(part.isdecimal() and part == str(int(part)) for part in parts):
                index = tuple(map(int, parts))
                if all(i < count for i, count in zip(index, counts)):
                    found[index] = size
        return found

    def remove(self, index: Index) -> None:
        """Remove a chunk."""
        self.folder.remove(self.key(index))
        self.folder.remove(self.seal_key(index))


def checksum(data: np.ndarray) -> bytes:
    """crc32c of bytes, little-endian."""
    return int(optional("google_crc32c").value(data)).to_bytes(4, "little")


def array_document(shape: Index, chunks: Index, dtype: torch.dtype) -> bytes:
    """The `zarr.json` of an array as zarr writes it."""
    zarr = optional("zarr")
    memory: dict[str, Any] = {}
    zarr.create_array(
        zarr.storage.MemoryStore(memory),
        shape=shape,
        chunks=chunks,
        dtype=DTYPES[dtype],
        filters=None,
        compressors=zarr.codecs.Crc32cCodec(),
        fill_value=float("nan"),
        zarr_format=3,
    )
    return bytes(memory[DOCUMENT].to_bytes())


def put_attributes(place: Folder, attributes: Mapping[str, Any]) -> bool:
    """Make `place` a zarr group with these attributes and their checksum; False if it already is a group, which is kept."""
    zarr = optional("zarr")
    plain = json.loads(strict_json(attributes))
    text = strict_json({**plain, CHECKED: attributes_checksum(plain)})
    memory: dict[str, Any] = {}
    zarr.create_group(zarr.storage.MemoryStore(memory), attributes=json.loads(text), zarr_format=3)
    return place.put(DOCUMENT, bytes(memory[DOCUMENT].to_bytes()), new=True)


def attributes_of(place: Folder, kind: str, schema: int) -> dict[str, Any] | None:
    """The attributes of the store at `place`, None if there is none; an error if it is something else, or newer."""
    data = place.get(DOCUMENT, LARGEST_DOCUMENT)
    if data is None:
        return None
    document = parse_json(data, f"{place.name(DOCUMENT)} (expected a zarr group)", StoreError)
    attributes = document.get("attributes") if isinstance(document, dict) else None
    if not isinstance(attributes, dict) or attributes.get("kind") != kind:
        raise StoreError(
            f"{place.url} is not an {kind} (its {DOCUMENT} does not say so); expected one written by ntkscope"
        )
    version = attributes.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StoreError(f"{place.url} has schema {version!r:.80}; expected a number from 1 to {schema}")
    if version > schema:
        raise StoreError(
            f"{place.url} was written with schema {version}; this version reads up to {schema}: update ntkscope"
        )
    if version < schema:
        raise StoreError(
            f"{place.url} was written with schema {version} by an earlier ntkscope, which did not keep what tells one network"
            f" from another; expected schema {schema}: compute it again in a new folder"
        )
    if attributes.get(CHECKED) != attributes_checksum(attributes):
        raise StoreError(
            f"{place.name(DOCUMENT)} is not what was written (the checksum of its labels and fingerprint differs); expected it"
            " unchanged: restore it, or compute the store again in a new folder"
        )
    return attributes


def attributes_checksum(attributes: Mapping[str, Any]) -> str:
    """A hash of all attributes but the checksum itself."""
    rest = {name: value for name, value in attributes.items() if name != CHECKED}
    text = json.dumps(json.loads(json.dumps(rest)), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def kind_of(place: Folder) -> str | None:
    """What kind of store is at `place`, None if there is none that says so."""
    data = place.get(DOCUMENT, LARGEST_DOCUMENT)
    try:
        document = None if data is None else parse_json(data, place.name(DOCUMENT), StoreError)
        kind = None if document is None else document["attributes"]["kind"]
    except (StoreError, KeyError, TypeError):
        return None
    return kind if isinstance(kind, str) else None


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Every entry in which two mappings differ, in words.

    >>> differences({"model": "a", "seed": "0"}, {"model": "b", "seed": "0", "new": "1"})
    ["model is 'b' now and 'a' in the store", "new is '1' now and absent in the store"]
    """

    def said(values: Mapping[str, Any], name: str) -> str:
        return repr(values[name]) if name in values else "absent"

    def different(name: str) -> str:
        if names_numerics(given.get(name)) and name in stored and not names_numerics(stored[name]):
            return (
                f"{name} is an earlier version in the store ({stored[name]!r}), which kept a hash of its own source files and"
                " not the version of its numbers: the store can be opened, but not resumed"
            )
        return f"{name} is {said(given, name)} now and {said(stored, name)} in the store"

    names = [*stored, *(name for name in given if name not in stored)]
    return [different(name) for name in names if said(given, name) != said(stored, name)]


def strict_json(value: Any) -> str:
    """JSON without NaN, refusing what JSON cannot represent."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the labels of a store must be JSON (texts, finite numbers, lists, mappings): {error}; leave that entry out"
        ) from error


def whole_number(value: Any, name: str, where: str, *, least: int = 1, most: int = LARGEST) -> int:
    """An integer read from a file, accepted only within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise StoreError(f"{where}: {name} is {shown(value)}; expected a whole number from {least} to {most}")
    return value


def dtype_named(name: Any, where: str) -> torch.dtype:
    """The dtype of a store by its name in the file."""
    names = {str(dtype).split(".")[1]: dtype for dtype in DTYPES}
    if not isinstance(name, str) or name not in names:
        raise StoreError(f"{where}: dtype is {shown(name)}; expected one of {', '.join(names)}")
    return names[name]

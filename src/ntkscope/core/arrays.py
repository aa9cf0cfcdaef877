"""Arrays on disk: one `.npy` file an array, with its checksum, read by mapping it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ntkscope.core.atomic import atomic_file
from ntkscope.core.errors import RecordError, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Arrays(Mapping):  # not Mapping[str, …]: a checker that samples items would read the disk
    """The arrays of one folder by name, read-only; each is compared with its checksum when it is first asked for."""

    def __init__(self, folder: Path, index: Mapping[str, Mapping[str, Any]]) -> None:
        self._folder, self._index = folder, index
        self._mapped: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._index:
            known = ", ".join(self._index) or "(none)"
            raise RecordError(f"{self._folder} holds no array {name!r}; it holds: {known}")
        if name not in self._mapped:
            self._mapped[name] = read_array(self._folder, name, self._index[name])
        return self._mapped[name]

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        shapes = (f"{name}: {entry['dtype']}{list(entry['shape'])}" for name, entry in self._index.items())
        return f"Arrays({', '.join(shapes)})"


def read_array(folder: Path, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    """The array an index entry names, mapped from the disk; O(bytes) once, for the checksum."""
    file = str(entry.get("file", ""))
    if not _NAME.fullmatch(file):
        raise RecordError(f"array {name!r} of {folder} lies in {file!r}; expected a plain file name beside the record")
    path = folder / file
    try:
        with open(path, "rb") as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise RecordError(
            f"cannot read array {name!r}: {path}: {error.strerror}; restore the file or run again"
        ) from error
    if found != entry.get("sha256"):
        raise RecordError(
            f"array {name!r} ({path}) has sha256 {found[:12]}…; the record says {str(entry.get('sha256'))[:12]}…:"
            " the file was changed or cut short; restore it or run again"
        )
    if 0 in entry["shape"]:  # nothing can be mapped of an empty file
        return np.load(path, allow_pickle=False)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def write_array(folder: Path, name: str, value: NDArray[Any] | Tensor, taken: set[str]) -> dict[str, Any]:
    """Write an array atomically under a file name not in `taken`; return its index entry."""
    array = as_numpy(name, value)
    file = next(file for file in _candidates(name) if file not in taken)
    with atomic_file(folder / file) as handle:
        hashing = _Hashing(handle)
        np.lib.format.write_array(hashing, array, allow_pickle=False)
    return {
        "file": file,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "bytes": hashing.bytes,
        "sha256": hashing.sha256.hexdigest(),
    }


def as_numpy(name: str, value: NDArray[Any] | Tensor) -> NDArray[Any]:
    """`value` as a NumPy array of numbers; refuses names that are no file names, and Python objects."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"array name {name!r}; expected letters, digits, '_', '-' and '.', starting with one of the first"
        )
    if isinstance(value, Tensor):
        if value.dtype == torch.bfloat16:
            raise UsageError(f"array {name!r} is bfloat16, which NumPy lacks; keep value.float() instead")
        value = value.detach().cpu().resolve_conj().resolve_neg().numpy()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise UsageError(f"array {name!r} holds Python objects ({array.dtype}); expected numbers or fixed-width texts")
    return array


def _candidates(name: str) -> Iterator[str]:
    yield f"{name}.npy"
    number = 1
    while True:
        yield f"{name}.{number}.npy"
        number += 1


class _Hashing:
    """A file that hashes what is written to it."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.bytes += len(data)
        return self._handle.write(data)

"""Arrays on disk: one `.npy` file per array, with its checksum, read by memory-mapping."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ntkscope.core.errors import RecordError, UsageError
from ntkscope.core.files.atomic import NEW, atomic_file
from ntkscope.core.files.plain import Lookup
from ntkscope.core.files.safe_files import FILE_NAME, NAME, regular_file

LARGEST_HEADER = 10_000  # bytes of the description at the head of a .npy file


class Arrays(Lookup):
    """The arrays of one folder by name, read-only; each is compared with its checksum when it is first read."""

    def __init__(self, folder: Path, index: Mapping[str, Mapping[str, Any]], before: Arrays | None = None) -> None:
        """The arrays of `index`; those that `before` has compared with their checksums are not compared again."""
        super().__init__(index)
        self._folder = folder
        known = {} if before is None else before._mapped
        self._mapped: dict[str, NDArray[Any]] = {
            name: array for name, array in known.items() if before and before._index.get(name) is index.get(name)
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._index:
            known = ", ".join(self._index) or "(none)"
            raise RecordError(f"{self._folder} holds no array {name!r}; it holds: {known}")
        if name not in self._mapped:
            self._mapped[name] = read_array(self._folder, name, self._index[name])
        return self._mapped[name]

    def kept(self, name: str) -> bool:
        """Whether the file of this array is in the folder; a record may be handed on without its arrays."""
        return name in self._index and (self._folder / str(self._index[name].get("file", ""))).is_file()

    def __repr__(self) -> str:
        shapes = (f"{name}: {entry['dtype']}{list(entry['shape'])}" for name, entry in self._index.items())
        return f"Arrays({', '.join(shapes)})"


def read_array(folder: Path, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    """The array an index entry names, memory-mapped from disk; O(bytes) once, for the checksum.

    The file must be a regular one in the folder, with the size, checksum, shape and type that the entry states.
    """
    file = str(entry.get("file", ""))
    if not FILE_NAME.fullmatch(file):
        raise RecordError(f"array {name!r} of {folder} lies in {file!r}; expected a plain file name beside the record")
    path = folder / file
    try:
        with regular_file(path, RecordError, inside=folder) as (handle, size):
            if size != entry.get("bytes"):
                raise _changed(name, path, f"{size:,} bytes", f"{entry.get('bytes'):,}")
            found = hashlib.file_digest(handle, "sha256").hexdigest()
            if found != entry.get("sha256"):
                raise _changed(name, path, f"sha256 {found[:12]}…", f"{str(entry.get('sha256'))[:12]}…")
            handle.seek(0)
            shape, fortran, dtype = _header(handle)
            start = handle.tell()
    except RecordError:
        raise
    except OSError as error:
        raise RecordError(
            f"cannot read array {name!r}: {path}: {error.strerror}; restore the file or run again"
        ) from error
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:  # of the parser of headers
        raise RecordError(
            f"array {name!r} ({path}) is not a plain array ({error!s:.200}); restore it or run again"
        ) from error
    said = (tuple(entry["shape"]), entry["dtype"])
    if (shape, str(dtype)) != said or size != start + math.prod(shape) * dtype.itemsize:
        raise _changed(name, path, f"shape {shape} of {dtype} in {size:,} bytes", f"{said[0]} of {said[1]}")
    order: Any = "F" if fortran else "C"
    try:
        if not math.prod(shape):  # an empty file cannot be memory-mapped
            return np.zeros(shape, dtype, order)
        return np.memmap(path, dtype=dtype, shape=shape, order=order, mode="r", offset=start)
    except (OSError, ValueError) as error:
        raise RecordError(f"array {name!r} ({path}) cannot be mapped ({error}); restore it or run again") from error


def _header(handle: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type at the head of a `.npy` file; the head is bounded before it is read."""
    version = np.lib.format.read_magic(handle)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format {version}")
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(handle.read(width), "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"a header of {length:,} bytes")
    handle.seek(-width, 1)
    read = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, on headers of Python 2
        shape, fortran, dtype = read(handle)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("it holds Python objects, or nothing")
    return shape, fortran, dtype


def _changed(name: str, path: Path, found: str, said: str) -> RecordError:
    return RecordError(
        f"array {name!r} ({path}) has {found}; the record says {said}: the file was changed or cut short; restore it or"
        " run again"
    )


def write_array(folder: Path, name: str, value: NDArray[Any] | Tensor, taken: set[str]) -> dict[str, Any]:
    """Write an array atomically under a file name that is free and not in `taken`; return its index entry."""
    array = as_numpy(name, value)
    file = next(file for file in _candidates(name) if file not in taken and not os.path.lexists(folder / file))
    with atomic_file(folder / file, over=NEW) as handle:
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
    """`value` as a NumPy array of numbers; refuses names that are not file names, and Python objects."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"array name {name!r}; expected at most 200 letters, digits, '_', '-' and '.', starting with one of the first"
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

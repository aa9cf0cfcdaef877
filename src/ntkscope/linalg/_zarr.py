"""Chunked arrays in a folder or behind any fsspec URL, as zarr version 3: every file whole or absent, every chunk checked.

zarr writes the metadata, so any zarr reader opens what is written here. The chunks are put by this file: the values in
row-major little-endian order, and their crc32c after them, which is what zarr's `bytes` and `crc32c` codecs say. So a
chunk of zeros is written like any other, an absent one is seen as absent, and a damaged one has a name.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import DamagedTile, StoreError, UsageError
from ntkscope.core.atomic import SUFFIX, atomic_file

Bytes: TypeAlias = bytes | np.ndarray  # an array of uint8
Index: TypeAlias = tuple[int, ...]
DTYPES = {torch.float16: "<f2", torch.float32: "<f4", torch.float64: "<f8"}
DOCUMENT = "zarr.json"
CHECKSUM = 4  # bytes of the crc32c after the values of a chunk
LARGEST_DOCUMENT = 1 << 26  # bytes of a zarr.json that is read
LARGEST = 1 << 48  # no side, chunk or count of a store that is believed is larger
ATTEMPTS = 8  # to write a file whose temporary another process cleared away
# Object stores show an object only when all of it is there; elsewhere a file is put under another name and moved.
WHOLE_OBJECTS = {"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "hf"}


def optional(name: str, extra: str = "store") -> Any:
    """An optional package, or an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise StoreError(
            f"kernels on disk need the package {name.split('.')[0]!r}, which is not installed ({error});"
            f" pip install 'ntkscope[{extra}]'"
        ) from error


class Folder(ABC):
    """Files under one address: `get`, `put`, `sizes`, `remove` by keys such as `values/c/0/1`. It pickles."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The address, as it is told to people and to `folder`."""

    def name(self, key: str) -> str:
        """A key's full address, for messages."""
        return f"{self.url.rstrip('/')}/{key}"

    @abstractmethod
    def get(self, key: str, limit: int) -> bytearray | None:
        """The bytes of a file, at most `limit` of them, so that no file fills the memory; None where there is none."""

    @abstractmethod
    def put(self, key: str, *parts: Bytes, new: bool = False) -> bool:
        """Write a file whole or not at all, replacing it; with `new`, only where there is none: False if there was."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Bytes of a file, None where there is none."""

    @abstractmethod
    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Every file below `prefix` and its size in bytes; files being written are left out."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove a file if it is there."""

    @abstractmethod
    def clear_leftovers(self) -> None:
        """Remove what killed writers left behind; writers that are alive notice and write again."""


@dataclass(frozen=True)
class LocalFolder(Folder):
    """A folder of this machine's file system."""

    path: Path

    @property
    def url(self) -> str:
        return str(self.path)

    def get(self, key: str, limit: int) -> bytearray | None:
        try:
            with open(self.path / key, "rb", buffering=0) as handle:
                data = bytearray(min(limit, os.fstat(handle.fileno()).st_size))
                view, filled = memoryview(data), 0
                while filled < len(data):
                    count = handle.readinto(view[filled:])
                    if not count:
                        break
                    filled += count
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failure("read", self.name(key), error) from error
        view.release()
        del data[filled:]
        return data

    def put(self, key: str, *parts: Bytes, new: bool = False) -> bool:
        path = self.path / key
        try:
            for attempt in range(ATTEMPTS):
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    return _put_new(path, parts) if new else _put(path, parts)
                except FileNotFoundError:  # somebody's `clear_leftovers` took the temporary file
                    if attempt == ATTEMPTS - 1:
                        raise
        except OSError as error:
            raise _failure("write", self.name(key), error, sum(map(len, parts))) from error
        raise AssertionError

    def size(self, key: str) -> int | None:
        try:
            return os.stat(self.path / key).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failure("read", self.name(key), error) from error

    def sizes(self, prefix: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        waiting = [self.path / prefix]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(Path(entry.path))
                        elif not entry.name.endswith(SUFFIX):
                            found[Path(entry.path).relative_to(self.path).as_posix()] = entry.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _failure("list", self.name(prefix), error) from error
        return found

    def remove(self, key: str) -> None:
        try:
            (self.path / key).unlink(missing_ok=True)
        except OSError as error:
            raise _failure("remove", self.name(key), error) from error

    def clear_leftovers(self) -> None:
        try:
            for leftover in self.path.rglob(f".*{SUFFIX}"):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise _failure("tidy", self.url, error) from error


@dataclass(frozen=True)
class RemoteFolder(Folder):
    """A folder of an fsspec file system: an object store, a server, memory."""

    files: Any
    path: str

    @property
    def url(self) -> str:
        return str(self.files.unstrip_protocol(self.path))

    def _at(self, key: str) -> str:
        return f"{self.path.rstrip('/')}/{key}" if key else self.path

    def _try(self, what: str, key: str, act: Callable[[], Any], size: int = 0) -> Any:
        try:
            return act()
        except FileNotFoundError:
            return None
        except Exception as error:  # each file system has its own kinds
            raise _failure(what, self.name(key), error, size) from error

    def get(self, key: str, limit: int) -> bytearray | None:
        data = self._try("read", key, lambda: self.files.cat_file(self._at(key), start=0, end=limit))
        return None if data is None else bytearray(data)

    def put(self, key: str, *parts: Bytes, new: bool = False) -> bool:
        data = b"".join(part if isinstance(part, bytes) else part.tobytes() for part in parts)
        protocols = self.files.protocol if isinstance(self.files.protocol, tuple | list) else (self.files.protocol,)

        def write() -> bool:
            if new and self.files.exists(self._at(key)):  # not one step: who writes reads again what is there then
                return False
            if WHOLE_OBJECTS.intersection(protocols):
                self.files.pipe_file(self._at(key), data)
                return True
            parent, _, name = self._at(key).rpartition("/")
            temporary = f"{parent}/.{name}.{os.urandom(6).hex()}{SUFFIX}"
            self.files.makedirs(parent, exist_ok=True)
            self.files.pipe_file(temporary, data)
            self.files.mv(temporary, self._at(key))
            return True

        for _ in range(ATTEMPTS):
            done = self._try("write", key, write, len(data))
            if done is not None:
                return bool(done)
        raise StoreError(f"{self.name(key)} could not be written: its folder or its temporary file vanished each time")

    def size(self, key: str) -> int | None:
        self.files.invalidate_cache()
        entry = self._try("read", key, lambda: self.files.info(self._at(key)))
        return None if entry is None else int(entry.get("size") or 0)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        self.files.invalidate_cache()
        found = self._try("list", prefix, lambda: self.files.find(self._at(prefix), detail=True)) or {}
        root = str(self.path).strip("/")
        return {
            name.strip("/").removeprefix(root).strip("/"): int(entry.get("size") or 0)
            for name, entry in found.items()
            if not name.endswith(SUFFIX)
        }

    def remove(self, key: str) -> None:
        self._try("remove", key, lambda: self.files.rm_file(self._at(key)))

    def clear_leftovers(self) -> None:
        for name in self._try("list", "", lambda: self.files.find(self.path)) or []:
            if name.endswith(SUFFIX) and name.rpartition("/")[2].startswith("."):
                self._try("remove", name, partial(self.files.rm_file, name))


def folder(url: str | os.PathLike[str]) -> Folder:
    """The folder at a path or an fsspec URL (`file://`, `memory://`, `s3://` …); nothing is read or made yet."""
    text = os.fspath(url)
    if not text:
        raise UsageError("an empty path came for a store; expected a folder or an fsspec URL")
    if "://" not in text:
        return LocalFolder(Path(os.path.abspath(text)))
    fsspec = optional("fsspec")
    try:
        files, path = fsspec.core.url_to_fs(text)
    except Exception as error:
        raise StoreError(f"{text} cannot be opened: {error}; expected a folder or a URL fsspec knows") from error
    local = "file" in (files.protocol if isinstance(files.protocol, tuple | list) else (files.protocol,))
    return LocalFolder(Path(path)) if local else RemoteFolder(files, path)


@dataclass(frozen=True)
class ChunkedArray:
    """One array of a store: chunks of `chunks` entries, the last ones padded with NaN as zarr wants them."""

    folder: Folder
    name: str
    shape: Index
    chunks: Index
    dtype: torch.dtype

    def key(self, index: Index) -> str:
        """The file of a chunk, as zarr's default encoding names it."""
        return "/".join([self.name, "c", *map(str, index)])

    @property
    def size(self) -> int:
        """Bytes of every chunk, its checksum included."""
        return math.prod(self.chunks) * torch.finfo(self.dtype).bits // 8 + CHECKSUM

    def put_metadata(self) -> None:
        """Write what zarr readers need, if it is not there."""
        key = f"{self.name}/{DOCUMENT}"
        document = array_document(self.shape, self.chunks, self.dtype)
        stored = self.folder.get(key, LARGEST_DOCUMENT)
        if stored is None or bytes(stored) != document:
            self.folder.put(key, document)

    def put(self, index: Index, values: Tensor) -> None:
        """Write one chunk; `values` may be smaller than a chunk at the array's end."""
        array = values.detach().to("cpu", self.dtype).contiguous().numpy().astype(DTYPES[self.dtype], copy=False)
        if array.shape != self.chunks:
            whole = np.full(self.chunks, np.nan, dtype=DTYPES[self.dtype])
            whole[tuple(map(slice, array.shape))] = array
            array = whole
        raw = array.reshape(-1).view(np.uint8)
        self.folder.put(self.key(index), raw, checksum(raw))

    def get(self, index: Index) -> Tensor | None:
        """One chunk, its checksum verified, cut to the array's end; None where it is absent."""
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
        stored = raw[:-CHECKSUM].view(DTYPES[self.dtype])
        values = stored if sys.byteorder == "little" else stored.astype(stored.dtype.newbyteorder("="))
        ends = (min(c, s - i * c) for i, c, s in zip(index, self.chunks, self.shape))
        return torch.from_numpy(values.reshape(self.chunks))[tuple(map(slice, ends))]

    def present(self) -> dict[Index, int]:
        """The chunks that are there, and the bytes of each; names that are no chunk of this array are left out."""
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
        """Make a chunk absent."""
        self.folder.remove(self.key(index))


REMEDY = "fill the store again, which computes this piece anew"


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
    """Make `place` a zarr group with these attributes; False if it is a group already, which is left as it is."""
    zarr = optional("zarr")
    text = strict_json(attributes)
    memory: dict[str, Any] = {}
    zarr.create_group(zarr.storage.MemoryStore(memory), attributes=json.loads(text), zarr_format=3)
    return place.put(DOCUMENT, bytes(memory[DOCUMENT].to_bytes()), new=True)


def attributes_of(place: Folder, kind: str, schema: int) -> dict[str, Any] | None:
    """The attributes of the store at `place`, None where nothing is; an error where something else is, or a newer one."""
    data = place.get(DOCUMENT, LARGEST_DOCUMENT)
    if data is None:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{place.name(DOCUMENT)} is not JSON ({error}); expected a zarr group") from error
    attributes = document.get("attributes") if isinstance(document, dict) else None
    if not isinstance(attributes, dict) or attributes.get("kind") != kind:
        raise StoreError(f"{place.url} is no {kind} (its {DOCUMENT} does not say so); expected one written by ntkscope")
    version = attributes.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StoreError(f"{place.url} has schema {version!r}; expected a number from 1 to {schema}")
    if version > schema:
        raise StoreError(
            f"{place.url} was written with schema {version}; this version reads up to {schema}: update ntkscope"
        )
    return attributes


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """In words, every entry in which two mappings differ.

    >>> differences({"model": "a", "seed": "0"}, {"model": "b", "seed": "0", "new": "1"})
    ["model is 'b' now and 'a' in the store", "new is '1' now and absent in the store"]
    """

    def said(values: Mapping[str, Any], name: str) -> str:
        return repr(values[name]) if name in values else "absent"

    names = [*stored, *(name for name in given if name not in stored)]
    return [
        f"{name} is {said(given, name)} now and {said(stored, name)} in the store"
        for name in names
        if said(given, name) != said(stored, name)
    ]


def strict_json(value: Any) -> str:
    """JSON without NaN, refusing what JSON cannot say."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the labels of a store must be JSON (texts, finite numbers, lists, mappings): {error}; leave that entry out"
        ) from error


def whole_number(value: Any, name: str, where: str, *, least: int = 1, most: int = LARGEST) -> int:
    """A whole number read from a file, believed only within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise StoreError(f"{where}: {name} is {value!r}; expected a whole number from {least} to {most}")
    return value


def dtype_named(name: Any, where: str) -> torch.dtype:
    """The dtype of a store by its name in the file."""
    names = {str(dtype).split(".")[1]: dtype for dtype in DTYPES}
    if not isinstance(name, str) or name not in names:
        raise StoreError(f"{where}: dtype is {name!r}; expected one of {', '.join(names)}")
    return names[name]


def _put(path: Path, parts: tuple[Bytes, ...]) -> bool:
    with atomic_file(path) as handle:
        for part in parts:
            handle.write(part if isinstance(part, bytes) else part.data)
    return True


def _put_new(path: Path, parts: tuple[Bytes, ...]) -> bool:
    """As `_put`, but a file that is there stays: a link, unlike a renaming, fails then."""
    if path.exists():
        return False
    draft = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.new{SUFFIX}")
    try:
        _put(draft, parts)
        try:
            os.link(draft, path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            os.replace(draft, path)  # a file system without links
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def _failure(what: str, name: str, error: Exception, size: int = 0) -> StoreError:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"no space left to write {name} ({size} bytes): what is finished is kept; free some space and run again"
        )
    return StoreError(f"cannot {what} {name}: {error}")

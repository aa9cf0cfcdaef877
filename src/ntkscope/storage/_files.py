"""Files under one address, local or behind any fsspec URL: every write is atomic, and errors are readable."""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ntkscope.core import UsageError
from ntkscope.core.arguments import path_of
from ntkscope.core.errors import DamagedTile, StoreError
from ntkscope.core.files.atomic import CHECKED, NEW, SUFFIX, atomic_file, remove_leftovers
from ntkscope.core.files.safe_files import regular_file

Bytes: TypeAlias = bytes | np.ndarray  # an array of uint8
ATTEMPTS = 32  # to write a file whose temporary file another process removed
# Object stores show an object only when it is complete; elsewhere a file is written under another name and moved.
LEFTOVER = re.compile(rf"\..+\.[0-9a-f]{{12}}{re.escape(SUFFIX)}", re.DOTALL)  # of `RemoteFolder.put`
WHOLE_OBJECTS = {"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "hf"}


def optional(name: str, extra: str = "store") -> Any:
    """An optional package, or an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise StoreError(
            f"kernels on disk need the package {name.split('.')[0]!r}, which is not installed ({error});"
            f' pip install "ntkscope[{extra}]"'
        ) from error


class Folder(ABC):
    """Files under one address: `get`, `put`, `sizes`, `remove` by keys such as `values/c/0/1`. It pickles."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The address, as shown to users and passed to `folder`."""

    def name(self, key: str) -> str:
        """A key's full address, for messages."""
        return f"{self.url.rstrip('/')}/{key}"

    @abstractmethod
    def get(self, key: str, limit: int) -> bytearray | None:
        """The bytes of a file, at most `limit` of them, so that no file fills the memory; None if there is none."""

    @abstractmethod
    def put(self, key: str, *parts: Bytes, new: bool = False) -> bool:
        """Write a file atomically, replacing it; with `new`, only if there is none: False if there was."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Size of a file in bytes, None if there is none."""

    @abstractmethod
    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Every file below `prefix` and its size in bytes; files being written are left out."""

    @abstractmethod
    def names(self) -> list[str]:
        """What lies directly in it, without files being written; empty if there is nothing."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove a file if it exists."""

    @abstractmethod
    def clear_leftovers(self) -> None:
        """Remove what killed writers left behind; writers that are alive notice and write again."""


@dataclass(frozen=True)
class LocalFolder(Folder):
    """A folder of the local file system."""

    path: Path

    @property
    def url(self) -> str:
        return str(self.path)

    def get(self, key: str, limit: int) -> bytearray | None:
        with _reported("read", self.name(key)):
            try:
                with regular_file(self.path / key, DamagedTile, inside=self.path) as (handle, size):
                    data = bytearray(min(limit, size))
                    view, filled = memoryview(data), 0
                    while filled < len(data):
                        count = handle.readinto(view[filled:])
                        if not count:
                            break
                        filled += count
            except (FileNotFoundError, NotADirectoryError):
                return None
        view.release()
        del data[filled:]
        return data

    def put(self, key: str, *parts: Bytes, new: bool = False) -> bool:
        path = self.path / key
        with _reported("write", self.name(key), sum(map(len, parts))):
            for attempt in range(ATTEMPTS):
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    return _put(path, parts, new)
                except FileNotFoundError:  # another process's `clear_leftovers` removed the temporary file
                    if attempt == ATTEMPTS - 1:
                        raise
        raise AssertionError

    def size(self, key: str) -> int | None:
        with _reported("read", self.name(key)):
            return _size(self.path / key)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        waiting = [self.path / prefix]
        while waiting:
            missing = suppress(FileNotFoundError, NotADirectoryError)
            with _reported("list", self.name(prefix)), missing, os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    elif not entry.name.endswith(SUFFIX):
                        size = _size(entry.path)
                        if size is not None:  # else just removed, or a dangling link
                            found[Path(entry.path).relative_to(self.path).as_posix()] = size
        return found

    def names(self) -> list[str]:
        with _reported("list", self.url), suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.path) if not name.endswith(SUFFIX))
        return []

    def remove(self, key: str) -> None:
        with _reported("remove", self.name(key)):
            (self.path / key).unlink(missing_ok=True)

    def clear_leftovers(self) -> None:
        with _reported("tidy", self.url):
            remove_leftovers(self.path)


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
            if new and self.files.exists(self._at(key)):  # not atomic: the writer reads back what is there afterwards
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

    def names(self) -> list[str]:
        self.files.invalidate_cache()
        found = self._try("list", "", lambda: self.files.ls(self.path, detail=False)) or []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found if not name.endswith(SUFFIX))

    def remove(self, key: str) -> None:
        self._try("remove", key, lambda: self.files.rm_file(self._at(key)))

    def clear_leftovers(self) -> None:
        for name in self._try("list", "", lambda: self.files.find(self.path)) or []:
            if LEFTOVER.fullmatch(name.rpartition("/")[2]):
                self._try("remove", name, partial(self.files.rm_file, name))


def folder(url: str | os.PathLike[str]) -> Folder:
    """The folder at a path or an fsspec URL (`file://`, `memory://`, `s3://` …); nothing is read or created yet."""
    path_of(url, "the place of a store")
    text = os.fspath(url)
    if not text:
        raise UsageError("got an empty path for a store; expected a folder or an fsspec URL")
    if "://" not in text:
        return LocalFolder(Path(os.path.abspath(text)))
    fsspec = optional("fsspec")
    try:
        files, path = fsspec.core.url_to_fs(text)
    except Exception as error:
        raise StoreError(f"{text} cannot be opened: {error}; expected a folder or a URL fsspec knows") from error
    local = "file" in (files.protocol if isinstance(files.protocol, tuple | list) else (files.protocol,))
    return LocalFolder(Path(path)) if local else RemoteFolder(files, path)


def _size(path: str | os.PathLike[str]) -> int | None:
    """Size of a file in bytes; None if there is none, or only a dangling link."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _put(path: Path, parts: tuple[Bytes, ...], new: bool) -> bool:
    """A store was begun in an empty folder and is recognised before anything is written: its keys are its own files."""
    try:
        with atomic_file(path, over=NEW if new else CHECKED) as handle:
            for part in parts:
                handle.write(part if isinstance(part, bytes) else part.data)
    except FileExistsError:
        return False
    return True


@contextmanager
def _reported(what: str, name: str, size: int = 0) -> Iterator[None]:
    """Errors of the file system in our own words."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise _failure(what, name, error, size) from error


def _failure(what: str, name: str, error: Exception, size: int = 0) -> StoreError:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"no space left to write {name} ({size} bytes): what is finished is kept; free some space and run again"
        )
    return StoreError(f"cannot {what} {name}: {error}")

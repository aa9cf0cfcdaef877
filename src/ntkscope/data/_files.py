"""Where real data lie on disk: which places are searched, how files are opened and their contents checked."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ntkscope.core.arguments import path_of
from ntkscope.core.errors import DataCorrupt, DataNotFound

Root: TypeAlias = str | os.PathLike[str] | None
Alternatives: TypeAlias = tuple[str, ...]  # names under which one file may lie, the preferred first

ENVIRONMENT = "NTKSCOPE_DATA"
CHUNK = 1 << 20
LIMIT = 1 << 28  # no file read here is larger; what claims to be is damaged or a decompression bomb
RATIO = 100  # no compressed file read here holds more bytes for each of its own; nor, below, …
SMALL = 1 << 20  # … more than these


def places(root: Root, folders: Sequence[str], system: Sequence[str] = ()) -> tuple[Path, ...]:
    """The folders to search, in order: under `root`, `root` itself, `$NTKSCOPE_DATA`, the user's cache, the system.

    >>> [p.as_posix() for p in places(".", ["mnist"])][:2]
    ['mnist', '.']
    """
    bases = []
    if root is not None:
        base = path_of(root, "root").expanduser()
        if not os.path.isdir(base):
            raise DataNotFound(f"root={str(root)!r} is not a folder; pass one that exists, or none to search the usual")
        bases.append(base)
    if os.environ.get(ENVIRONMENT):
        bases.append(Path(os.environ[ENVIRONMENT]).expanduser())
    bases.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ntkscope")

    found = [base / folder for base in bases for folder in folders]
    if root is not None:
        found.insert(len(folders), bases[0])
    return tuple(dict.fromkeys([*found, *map(Path, system)]))


def pick(folder: Path, names: Alternatives) -> Path | None:
    """The first of `names` that is a file in `folder`."""
    return next((folder / name for name in names if os.path.isfile(folder / name)), None)


def find_folder(title: str, searched: Sequence[Path], needs: Sequence[Alternatives], remedy: str) -> Path:
    """The first place that holds every file of `needs`; otherwise `DataNotFound` with all places and the remedy."""
    seen = []
    for place in searched:
        if not os.path.isdir(place):
            seen.append(f"  {place} (no such folder)")
            continue
        missing = [" or ".join(names) for names in needs if pick(place, names) is None]
        if not missing:
            return place
        seen.append(f"  {place} (lacks {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''})")
    raise not_found(title, seen, remedy)


def not_found(title: str, seen: Sequence[str], remedy: str) -> DataNotFound:
    """The error that says where we looked for `title` and how to get it."""
    looked = "\n".join(seen)
    return DataNotFound(
        f"{title} was not found. Looked in:\n{looked}\nHow to get it: {remedy}\n"
        f"Then pass root=, or set ${ENVIRONMENT}, to the folder that holds it."
    )


def _open(path: Path) -> io.BufferedIOBase:
    if not os.path.isfile(path):  # reading a pipe would block, a device never ends
        raise DataCorrupt(f"{path} is not a regular file; put the data's own file there")
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def read_partial(path: Path, limit: int = LIMIT) -> tuple[bytes, str | None]:
    """The (decompressed) content of `path` as far as it can be read, and what stopped reading, if anything did."""
    content = bytearray()
    problem = None
    try:
        if path.suffix in (".gz", ".xz"):
            limit = min(limit, max(SMALL, RATIO * path.stat().st_size))
        with _open(path) as file:
            while len(content) <= limit and (chunk := file.read(CHUNK)):
                content += chunk
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, MemoryError) as error:
        problem = f"{type(error).__name__}: {error}"
    except DataCorrupt:
        raise
    except OSError as error:
        raise DataCorrupt(f"{path} cannot be read: {error.strerror or error}; check the permissions") from error
    if problem is None and len(content) > limit:
        problem = f"more than the {limit:,} bytes such a file may have"
    return bytes(content), problem


def read_file(path: Path, limit: int = LIMIT) -> bytes:
    """The whole (decompressed) content of `path`; `DataCorrupt` when its compression is damaged or it is too large."""
    content, problem = read_partial(path, limit)
    if problem is not None:
        raise DataCorrupt(f"{path}: reading stopped after {len(content):,} bytes ({problem}); fetch the file again")
    return content


def check_sha256(content: Any, expected: str, what: str) -> None:
    """`DataCorrupt` unless the sha256 of `content` (bytes, or a contiguous array) is `expected`."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataCorrupt(
            f"{what}: the sha256 of the content is {found}, expected {expected}; the file is damaged or holds other"
            " data: fetch it again, or pass verify=False to read it as it is"
        )


def read_text(path: Path, sha256: str | None) -> str:
    """The UTF-8 text of a (compressed) file, checked against `sha256` of the uncompressed bytes when one is given."""
    content = read_file(path)
    if sha256 is not None:
        check_sha256(content, sha256, str(path))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataCorrupt(
            f"{path}: byte {error.start} (line {line}) is {content[error.start]:#04x}, which is not UTF-8;"
            " convert the file to UTF-8 or fetch it again"
        ) from error

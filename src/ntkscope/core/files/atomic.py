"""The one place that writes files: atomically, and never over a file that ntkscope did not write.

Every kind of file has a mark among its first bytes, by which its writer knows its own files. What has no mark of ours is
neither replaced nor removed. `tests/core/test_writers.py` holds every room to this.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

from ntkscope.core.errors import RecordError, UsageError

SUFFIX = ".part"
HEAD = 1 << 16  # bytes among which a mark lies
NEW: Final = "new"  # nothing may be there: FileExistsError
CHECKED: Final = "checked"  # the caller has read what is there and recognised it: a record, a part of a store
Over: TypeAlias = Literal["new", "checked"] | bytes | tuple[bytes, ...]
_LEFTOVER = re.compile(rf"\..+\.([0-9]{{1,10}})-[0-9a-f]{{8}}{re.escape(SUFFIX)}", re.DOTALL)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_writing: set[Path] = set()  # temporary files of this process


@contextmanager
def atomic_file(path: str | os.PathLike[str], *, over: Over, durable: bool = True) -> Iterator[BinaryIO]:
    """Open `path` for writing so that readers see the old file or the complete new one, even after a power cut.

    `over`: what may be replaced: `NEW`, nothing; `CHECKED`, what the caller recognised; otherwise a file with one of these
    marks in its first bytes. The bytes go to a temporary file in the same folder, are flushed to the disk, and take the place
    of `path` in one step. When anything fails, the temporary file is removed and `path` is unchanged. `durable=False` leaves
    the flushing to the system, for files that can be recomputed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_file(folder / "a", over=NEW) as handle:
    ...     _ = handle.write(b"new")
    >>> (folder / "a").read_bytes()
    b'new'
    """
    path = Path(path)
    _check(path, over)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}")
    _writing.add(temporary)
    try:
        with open(temporary, "xb") as handle:
            yield handle
            handle.flush()
            if durable:
                os.fsync(handle.fileno())
        _check(path, over)  # someone may have put a file there meanwhile
        if over != NEW or not _linked(temporary, path):
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        _writing.discard(temporary)
    if durable:
        _sync_folder(path.parent)


def write_file(path: str | os.PathLike[str], data: bytes, *, over: Over, durable: bool = True) -> None:
    """All of a file at once, by `atomic_file`; one that cannot be written is a `RecordError`, and leaves what was there."""
    try:
        with atomic_file(path, over=over, durable=durable) as handle:
            handle.write(data)
    except FileExistsError:
        raise
    except OSError as error:
        raise RecordError(
            f"cannot write {str(path)[:300]}: {error.strerror}; choose another file, or free some space there"
        ) from error


def is_ours(path: str | os.PathLike[str], *marks: bytes) -> bool:
    """Whether a regular file has one of `marks` among its first bytes."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as handle:
        head = handle.read(HEAD)
    return any(mark in head for mark in marks)


def remove_leftovers(folder: Path) -> None:
    """Remove, in `folder` and below, what `atomic_file` of a process that has ended left there."""
    for leftover in folder.rglob(f".*{SUFFIX}"):
        match = _LEFTOVER.fullmatch(leftover.name)
        if match and leftover.is_file() and leftover not in _writing and not _alive(int(match[1])):
            leftover.unlink(missing_ok=True)


def _check(path: Path, over: Over) -> None:
    """Raise an error if something is at `path` that may not be replaced."""
    if over == CHECKED or not os.path.lexists(path):
        return
    if over == NEW:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if not is_ours(path, *([over] if isinstance(over, bytes) else over)):
        raise UsageError(
            f"{path} is there already, and is not a file of this kind that ntkscope wrote; it was left as it is: choose another"
            " name, or move it away"
        )


def _linked(temporary: Path, path: Path) -> bool:
    """Give the file its name only if that is free, which a rename does not ask; False on a file system without links."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _alive(process: int) -> bool:
    """Whether another process with this number runs here."""
    if process == os.getpid() or os.name != "posix":
        return False  # this one knows its own files
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable; only POSIX lets a folder be opened for that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Atomic writes: readers see the old file or the complete new one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".part"


@contextmanager
def atomic_file(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open `path` for writing so that readers see the old file or the complete new one, even after a power cut.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and take the place of `path` in one
    step. When anything fails, the temporary file is removed and `path` is unchanged. `durable=False` leaves the flushing to
    the system, for files that can be recomputed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_file(folder / "a") as handle:
    ...     _ = handle.write(b"new")
    >>> (folder / "a").read_bytes()
    b'new'
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}")
    try:
        with open(temporary, "xb") as handle:
            yield handle
            handle.flush()
            if durable:
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed process left in `folder`."""
    for leftover in folder.glob(f".*{SUFFIX}"):
        leftover.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable; only POSIX lets a folder be opened for that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""One writer per folder: a lock on the folder itself, which ends with its process and leaves no file behind."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from ntkscope.core.errors import RecordError

_BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)
_held: dict[tuple[int, int], list[int]] = {}  # by device and inode: the handle with the lock, how many hold it


class FolderLock:
    """Held from its making until `release`, or until nobody refers to it; refused while another process holds it.

    Within a process it may be held several times. Where a system has no such locks (Windows, some network drives), it does
    nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._key: tuple[int, int] | None = None
        if os.name != "posix":
            return
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # what is to be read or written there says what is wrong
        found = os.fstat(handle)
        key = (found.st_dev, found.st_ino)
        if key in _held:
            os.close(handle)
            _held[key][1] += 1
        elif not _lock(handle, folder):
            os.close(handle)
            return
        else:
            _held[key] = [handle, 1]
        self._key = key

    def release(self) -> None:
        """Let others have the folder."""
        entry = None if self._key is None else _held.get(self._key)
        if self._key is not None and entry is not None:
            entry[1] -= 1
            if not entry[1]:
                del _held[self._key]
                os.close(entry[0])
        self._key = None

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    __del__ = release


def _lock(handle: int, folder: Path) -> bool:
    """Lock an open folder; False where that cannot be done, an error where another process has it."""
    fcntl: Any = import_module("fcntl")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _BUSY:
            return False
        os.close(handle)
        raise RecordError(
            f"another process is writing to {folder}; wait until it has ended, or choose another folder"
        ) from error
    return True


def _forget() -> None:
    """In a new child process: what its parent holds is the parent's."""
    for handle, _ in _held.values():
        os.close(handle)
    _held.clear()


if os.name == "posix":
    os.register_at_fork(after_in_child=_forget)

"""The bounds every bad input is tried within: a time, a gigabyte, and everything outside its folder left as it was."""

from __future__ import annotations

import copy
import hashlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ntkscope.cli import main
from ntkscope.core import NtkscopeError

SECONDS = 30
GIBIBYTE = 1 << 30
STATUS = Path("/proc/self/statm")


class TooLong(BaseException):
    """A bad input was waited for."""


@contextmanager
def bounded(seconds: float = SECONDS, extra: int = GIBIBYTE) -> Iterator[None]:
    """Raise `TooLong` after `seconds`, and let this process map `extra` bytes more than now, and no more."""

    def late(number: int, frame: Any) -> None:
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if STATUS.exists():
        mapped = int(STATUS.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + extra, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def refused(act: Callable[[], Any], **bounds: Any) -> str:
    """The message of the error that `act` ends with, which must be one of ours, and say what to do."""
    with bounded(**bounds), pytest.raises(NtkscopeError) as caught:
        act()
    message = str(caught.value)
    assert len(message) > 20, message
    assert len(message) < 4000, "an error repeats the whole file"
    assert "MemoryError" not in message, message
    assert "allocate memory" not in message, message
    return message


def exits_2(*arguments: str) -> None:
    """The command line refuses: exit code 2 and no traceback."""
    with bounded(), pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2


def ends(*arguments: str) -> int:
    """The command line ends, with a result or a refusal; its exit code."""
    with bounded(), pytest.raises(SystemExit) as left:
        main(arguments)
    code = int(left.value.code or 0)
    assert code in (0, 1, 2)
    return code


def state(folder: Path) -> dict[str, str]:
    """Every file below a folder with what it holds; links are not followed, pipes not opened."""
    found = {}
    for place, _, files in os.walk(folder):
        for name in files:
            path = Path(place) / name
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


GONE = object()


def put(value: Any, path: str, new: Any) -> Any:
    """A copy of nested mappings and lists with another entry at a path with slashes; `GONE` removes it."""
    changed = copy.deepcopy(value)
    place = changed
    *parents, last = path.split("/")
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    if new is GONE:
        place.pop(last, None)
    else:
        place[int(last) if isinstance(place, list) else last] = new
    return changed


NODES: dict[str, Callable[[Path], Any]] = {  # what may lie in place of a file
    "pipe": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "link to zeros": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
}

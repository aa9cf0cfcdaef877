"""A file from elsewhere is checked before anything in it is trusted.

Regular files only (reading a pipe would block, a device never ends), inside the folder they belong to, of bounded size;
JSON of bounded size and depth, strict, and writable again.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ntkscope.core.errors import DataCorrupt, NtkscopeError

LARGEST_JSON = 1 << 26  # bytes of a JSON file
MOST_VALUES = 4_000_000  # values in one JSON file: each takes a few hundred bytes of memory, whatever its size on disk
LARGEST_HEAD = 1 << 26  # bytes of the header of a safetensors file
DEEPEST = 64  # lists and mappings inside each other
LARGEST_NUMBER = 10**300  # a larger integer does not fit in a float
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")  # of an array or series: no folder, nothing hidden
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,229}")  # … and of the file that holds it

Refusal = type[NtkscopeError]


@contextmanager
def regular_file(
    path: Path, refusal: Refusal, *, inside: Path | None = None
) -> Iterator[tuple[io.BufferedReader, int]]:
    """Open a regular file and return its size as well; a pipe, a device or a folder is refused without blocking.

    `inside`: the folder it belongs to; a symbolic link that leads out of it is refused. A missing file is an
    `OSError`, as usual.
    """
    if inside is not None and not is_inside(path, inside):
        raise refusal(f"{path} is a link that leads out of {inside}; expected a file in that folder: put it there")
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    _require_regular(os.stat(path).st_mode, path, refusal)  # opening a device may have side effects
    with os.fdopen(os.open(path, flags), "rb") as handle:
        found = os.fstat(handle.fileno())
        _require_regular(found.st_mode, path, refusal)
        yield handle, found.st_size


def read_bytes(path: Path, refusal: Refusal, *, limit: int, inside: Path | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with regular_file(path, refusal, inside=inside) as (handle, size):
        if size > limit:
            raise refusal(f"{path} has {size:,} bytes; expected at most {limit:,}: it is not what a run wrote there")
        return handle.read(limit)


def is_inside(path: Path, folder: Path) -> bool:
    """Whether `path`, links followed, lies in `folder`."""
    real, home = os.path.realpath(path), os.path.realpath(folder)
    return real == home or real.startswith(home.rstrip(os.sep) + os.sep)


def check_safetensors(path: Path, remedy: str = "copy or download it again") -> None:
    """Raise `DataCorrupt` when the header of a safetensors file claims more bytes than it may have."""
    with regular_file(path, DataCorrupt) as (handle, size):
        length = int.from_bytes(handle.read(8), "little")
    if size < 8 or length > min(LARGEST_HEAD, size - 8):
        raise DataCorrupt(
            f"{path} is not a complete safetensors file (a header of {length:,} bytes in a file of {size:,}); {remedy}"
        )


def parse_json(data: bytes | bytearray, what: str, refusal: Refusal) -> Any:
    """Strict JSON of bounded size and depth; every number is finite and every string can be written again.

    >>> parse_json(b'{"a": [1, 2.5]}', "a file", NtkscopeError)
    {'a': [1, 2.5]}
    >>> parse_json(b'{"a": NaN}', "a file", NtkscopeError)
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.NtkscopeError: a file is not JSON as ntkscope writes it: NaN is not a JSON number
    """
    if len(data) > LARGEST_JSON:
        raise refusal(f"{what} has {len(data):,} bytes of JSON; expected at most {LARGEST_JSON:,}")
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise refusal(f"{what} holds too many values; expected at most {MOST_VALUES:,}")
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        _check_values(value, escaped=b"\\ud" in data or b"\\uD" in data)
    except RecursionError:
        raise refusal(f"{what} is nested too deeply; expected at most {DEEPEST} levels") from None
    except ValueError as error:
        raise refusal(f"{what} is not JSON as ntkscope writes it: {error}") from error
    return value


def _check_values(value: Any, escaped: bool) -> None:
    """Raise `ValueError` for values that could not be used or written again, level by level."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST + 1:
            raise ValueError(f"nested more than {DEEPEST} levels deep")
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                below += item.values()
                if escaped:
                    below += item
            elif kind is list:
                below += item
            elif kind is float and not math.isfinite(item):
                raise ValueError("a number is too large for a float")
            elif kind is int and not -LARGEST_NUMBER < item < LARGEST_NUMBER:
                raise ValueError("an integer is too large")
            elif kind is str and escaped:
                item.encode("utf-8")  # half a surrogate pair: UnicodeEncodeError, a ValueError
        level = below


def _no_constant(token: str) -> Any:
    raise ValueError(f"{token} is not a JSON number")


def _require_regular(mode: int, path: Path, refusal: Refusal) -> None:
    if not stat.S_ISREG(mode):
        kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
        kind = next((name for test, name in kinds.items() if test(mode)), "a device")
        raise refusal(f"{path} is {kind}; expected a regular file: remove it, or give another folder")

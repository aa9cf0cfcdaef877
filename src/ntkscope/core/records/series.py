"""A series: rows that are appended one at a time, each a line of JSON in a file of its own.

An append costs the row and nothing else, however long the series is. A process that is killed leaves whole lines and at
most one torn one, which is dropped when the series is opened again. A checksum covers the rows up to the last write of
`record.json`; rows that a killed run appended after it are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ntkscope.core.errors import RecordError, UsageError
from ntkscope.core.files.plain import from_plain, to_plain
from ntkscope.core.files.safe_files import parse_json, regular_file

LARGEST_ROW = 1 << 20  # bytes of one line
LARGEST_SERIES = 1 << 30  # bytes of a file
CHUNK = 1 << 20
SUFFIX = ".jsonl"
EMPTY = hashlib.sha256().hexdigest()


@dataclass(frozen=True)
class Known:
    """What `record.json` says about a series: its file, and how much of it was there at the last write."""

    file: str
    rows: int = 0
    bytes: int = 0
    sha256: str = EMPTY

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Known:
        return cls(entry["file"], entry["rows"], entry["bytes"], entry["sha256"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Series:
    """The rows of one series, in the order they were appended; `Record.series` returns one.

    >>> import tempfile
    >>> series = Series.new(Path(tempfile.mkdtemp()), "loss")
    >>> for step in range(3):
    ...     series.append({"step": step, "loss": 1 / (1 + step)})
    >>> len(series), series[-1]["step"], series.columns()["loss"][:2]
    (3, 2, [1.0, 0.5])
    """

    def __init__(self, folder: Path, name: str, known: Known, *, tail: bool) -> None:
        """Read what `known` names; `tail`: whether it may be followed by rows that the record does not know about yet."""
        self.name, self.path = name, folder / known.file
        self._handle: int | None = None
        self._hash = hashlib.sha256()
        self._known = known
        self._sound = 0  # bytes of whole rows
        self._rows = 0
        self.settle: Callable[[], object] | None = None
        """Writes what `sync` says to `record.json`; set by the record that holds this series."""
        self._open(folder, tail)

    @classmethod
    def new(cls, folder: Path, name: str) -> Series:
        """A series without rows, in a new file: existing files are never overwritten."""
        for number in range(1000):
            file = f"{name}.{number}{SUFFIX}" if number else f"{name}{SUFFIX}"
            try:
                os.close(os.open(folder / file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except FileExistsError:
                continue
            except OSError as error:
                raise _not_writable(folder / file, error) from error
            return cls.resumed(folder, name, Known(file))
        raise RecordError(f"{folder} has a thousand files {name}.*{SUFFIX}; choose another name or folder")

    @classmethod
    def resumed(cls, folder: Path, name: str, known: Known) -> Series:
        """The existing series, without its torn tail, open for appending."""
        series = cls(folder, name, known, tail=True)
        try:
            series._handle = os.open(series.path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
            os.ftruncate(series._handle, series._sound)
        except OSError as error:
            raise _not_writable(series.path, error) from error
        return series

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row: names with numbers, strings, or lists and mappings of them. The operating system has it when this
        returns, so a kill does not lose it; it reaches the disk with the next write of the record."""
        if self._handle is None:
            raise RecordError(f"series {self.name!r} was opened for reading; resume the record to append to it")
        plain = to_plain(row, f"series {self.name!r}")
        if not isinstance(plain, dict) or not plain:
            raise UsageError(f"got {plain!r:.80} as a row of series {self.name!r}; expected names and values")
        line = json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > LARGEST_ROW or self._sound + len(line) > LARGEST_SERIES:
            raise UsageError(
                f"got a row of {len(line):,} bytes for series {self.name!r} of {self._sound:,}; expected at most"
                f" {LARGEST_ROW:,} per row and {LARGEST_SERIES:,} in all: keep arrays with record.array"
            )
        try:
            written = os.write(self._handle, line)
            if written != len(line):
                raise OSError(28, "only a part of the row fits")
        except OSError as error:
            os.ftruncate(self._handle, self._sound)  # no torn row before the next one
            raise RecordError(
                f"could not append to {self.path}: {error.strerror}; the earlier rows are unchanged: make room, then resume"
            ) from error
        self._hash.update(line)
        self._sound += len(line)
        self._rows += 1

    def rewind(self, rows: int) -> None:
        """Keep the first `rows` rows only: a run that resumes from an earlier step appends the later ones again.

        The record says so before the file is cut, so that a process killed in between leaves a record that opens: with the
        later rows still there, never with fewer than it says.
        """
        if self._handle is None:
            raise RecordError(f"series {self.name!r} was opened for reading; resume the record to rewind it")
        if not 0 <= rows <= self._rows:
            raise UsageError(f"series {self.name!r} has {self._rows} rows; cannot rewind it to {rows}")
        hashed, place = hashlib.sha256(), 0
        for number, line in enumerate(self._lines()):
            if number == rows:
                break
            hashed.update(line)
            place += len(line)
        before = self._hash, self._sound, self._rows
        self._hash, self._sound, self._rows = hashed, place, rows
        try:
            if self.settle is not None and place < before[1]:
                self.settle()
            os.ftruncate(self._handle, place)
        except OSError:
            self._hash, self._sound, self._rows = before
            raise

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows, one by one from the disk."""
        for number, line in enumerate(self._lines()):
            yield self._row(number, line)

    def __getitem__(self, place: int) -> dict[str, Any]:
        """One row by its position, counted from the end if negative; O(bytes)."""
        wanted = place + self._rows if place < 0 else place
        for number, line in enumerate(self._lines()):
            if number == wanted:
                return self._row(number, line)
        raise IndexError(f"series {self.name!r} has {self._rows} rows; there is no row {place}")

    def columns(self) -> dict[str, list[Any]]:
        """The values by name, None where a row lacks that name; O(bytes)."""
        found: dict[str, list[Any]] = {}
        for number, row in enumerate(self):
            for name in row:
                if name not in found:
                    found[name] = [None] * number
            for name, values in found.items():
                values.append(row.get(name))
        return found

    def __repr__(self) -> str:
        return f"Series({self.name!r}, {self._rows} rows)"

    def sync(self) -> Known:
        """Flush to disk; return what `record.json` says about it."""
        if self._handle is not None:
            os.fsync(self._handle)
        return Known(self._known.file, self._rows, self._sound, self._hash.hexdigest())

    def close(self) -> None:
        """Close it for appending."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _open(self, folder: Path, tail: bool) -> None:
        """Compare the known part with its checksum and count the whole rows after it."""
        known = self._known
        try:
            with regular_file(self.path, RecordError, inside=folder) as (handle, size):
                if size < known.bytes or size > LARGEST_SERIES + LARGEST_ROW or (size > known.bytes and not tail):
                    raise self._damaged(f"{size:,} bytes, but {known.bytes:,} were written")
                while self._sound < known.bytes:
                    chunk = handle.read(min(CHUNK, known.bytes - self._sound))
                    if not chunk:
                        raise self._damaged("fewer bytes than it had a moment ago")
                    self._hash.update(chunk)
                    self._sound += len(chunk)
                    self._rows += chunk.count(b"\n")
                if self._hash.hexdigest() != known.sha256 or self._rows != known.rows:
                    raise self._damaged("other rows than the record says (its checksum or their number differs)")
                while line := handle.readline(LARGEST_ROW + 1):
                    if not line.endswith(b"\n"):
                        break  # the torn tail of a process that was killed
                    try:
                        self._row(self._rows, line)
                    except RecordError:
                        break
                    self._hash.update(line)
                    self._sound += len(line)
                    self._rows += 1
        except RecordError:
            raise
        except OSError as error:
            raise RecordError(
                f"cannot read series {self.name!r}: {self.path}: {error.strerror}; restore the file or run again"
            ) from error

    def _lines(self) -> Iterator[bytes]:
        if not self._sound:
            return
        with regular_file(self.path, RecordError) as (handle, _):
            place = 0
            while place < self._sound:
                line = handle.readline(LARGEST_ROW + 1)
                if not line.endswith(b"\n"):
                    raise self._damaged("a torn row where there was none")
                place += len(line)
                yield line

    def _row(self, number: int, line: bytes) -> dict[str, Any]:
        row = parse_json(line, f"row {number} of {self.path}", RecordError)
        if not isinstance(row, dict):
            raise self._damaged(f"a row {number} that is not a mapping")
        plain: dict[str, Any] = from_plain(row)
        return plain

    def _damaged(self, what: str) -> RecordError:
        return RecordError(
            f"series {self.name!r} ({self.path}) has {what}: the file was changed or cut short; restore it or run again"
        )


def _not_writable(path: Path, error: OSError) -> RecordError:
    return RecordError(f"cannot append to {path}: {error.strerror}; make room or change the permissions there")

"""The record: a folder that says what ran, how far it got and what it found."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from ntkscope.core.arguments import path_of
from ntkscope.core.errors import RecordError, UsageError
from ntkscope.core.files.arrays import Arrays, write_array
from ntkscope.core.files.atomic import CHECKED, NEW, Over, atomic_file, remove_leftovers
from ntkscope.core.files.lock import FolderLock
from ntkscope.core.files.plain import ReadBack, differences, from_plain, to_plain
from ntkscope.core.files.safe_files import LARGEST_JSON, NAME
from ntkscope.core.machine.environment import environment
from ntkscope.core.machine.interrupts import Terminated
from ntkscope.core.records.claims import Claim
from ntkscope.core.records.record_schema import FILE, SCHEMA_VERSION, read_record, record_text
from ntkscope.core.records.series import Known, Series
from ntkscope.core.records.soundness import unsound, without
from ntkscope.core.records.stage import OpenStage, Stage
from ntkscope.core.records.summary import html_summary, text_summary

WRITE_EVERY = 5.0  # seconds between writes caused by Stage.advance alone


class Record:
    """A folder with `record.json` and arrays beside it, every write of it atomic.

    `Record.create` starts one, `Record.open` reads one (also while it is written, or after its process was killed),
    `Record.resume` continues one. As a context manager it ends as `done`, `failed` or `interrupted`.

    NaN and infinities are written as the texts `"NaN"`, `"Infinity"`, `"-Infinity"` (JSON has no such numbers) and
    read back as numbers.

    Examples:
        >>> import tempfile, numpy as np
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> with Record.create(folder, kind="example", name="squares", config={"n": 3}) as record:
        ...     with record.stage("square", total=3) as stage:
        ...         for i in range(stage.done, 3):
        ...             stage.advance()
        ...     record.array("squares", np.arange(3) ** 2)
        ...     record.put(sum=5)
        >>> again = Record.open(folder)
        >>> again.status, again.metrics["sum"], again.arrays["squares"].tolist(), again.stages["square"].done
        ('done', 5, [0, 1, 4], 3)
    """

    def __init__(self, folder: Path, document: dict[str, Any], *, writable: bool) -> None:
        self.folder = folder
        self._document = document
        self._writable = writable
        self._began = time.perf_counter()
        self._written = float("-inf")
        self._seconds_before = float(document["wall_seconds"])
        self._arrays: Arrays | None = None
        self._series: dict[str, Series] = {}
        self._lock = FolderLock(folder) if writable else None
        self.dropped: tuple[str, ...] = ()
        """Arrays and series whose files were lost or damaged when the record was resumed; it no longer holds them."""

    # -- making and reading ---------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        kind: str,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        seeds: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        command: str | None = None,
    ) -> Record:
        """Start a record in `folder`, which is created if missing and must not hold a record yet."""
        folder = path_of(folder, "folder")
        now = _now()
        document = {
            "schema_version": SCHEMA_VERSION,
            "kind": kind,
            "name": name or kind,
            "config": to_plain(config or {}, "config"),
            "seeds": to_plain(seeds or {}, "seeds"),
            "environment": environment(device),
            "command": _command() if command is None else command,
            "started": now,
            "updated": now,
            "wall_seconds": 0.0,
            "status": "running",
            "error": None,
            "stages": {},
            "metrics": {},
            "claims": [],
            "arrays": {},
            "series": {},
            "earlier": [],
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            record = cls(folder, document, writable=True)
            record._write(NEW)
        except FileExistsError as error:
            if not folder.is_dir():
                raise RecordError(
                    f"{folder} is a file; expected a folder, such as {folder.with_suffix('')}-record"
                ) from error
            raise RecordError(
                f"{folder} already holds a record; choose another folder (--out on the command line), or continue it with"
                " Record.resume"
            ) from error
        except RecordError:
            raise
        except OSError as error:
            raise RecordError(f"cannot create the folder {folder}: {error}; choose another one") from error
        return record

    @classmethod
    def open(cls, folder: str | Path) -> Record:
        """Read the record in `folder`; nothing can be written through what this returns."""
        folder = path_of(folder, "folder")
        return cls(folder, read_record(folder), writable=False)

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        seeds: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> Record:
        """Resume the record in `folder`; a `config` or `seeds` that differs from the recorded one is refused.

        What ran before is kept under `earlier`, with its environment; wall time adds up. Arrays and series whose files were
        lost or changed are dropped with a `DamageWarning` and named in `.dropped`, so that the run recomputes them.
        """
        folder = path_of(folder, "folder")
        with FolderLock(folder):  # nobody writes between reading it and going on
            return cls._resumed(folder, config, seeds, device)

    @classmethod
    def _resumed(cls, folder: Path, config: Any, seeds: Any, device: torch.device | str | None) -> Record:
        document = read_record(folder)
        for key, given in (("config", config), ("seeds", seeds)):
            found = [] if given is None else differences(document[key], to_plain(given, key))
            if found:
                raise RecordError(
                    f"{folder} was made with another {key} ({'; '.join(found)});"
                    f" resume with the recorded {key}, or choose another folder"
                )
        kept = ("started", "updated", "wall_seconds", "status", "error", "command", "environment")
        now = _now()
        changes = {
            "earlier": [*document["earlier"], {key: document.get(key) for key in kept}],
            "environment": environment(device),
            "command": _command(),
            "started": now,
            "status": "running",
            "error": None,
        }
        record = cls(folder, document, writable=True)
        remove_leftovers(folder)
        record.dropped = unsound(folder, document)
        record._write(**changes, **without(folder, document, record.dropped))
        return record

    # -- what it says ---------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return str(self._document["kind"])

    @property
    def name(self) -> str:
        return str(self._document["name"])

    @property
    def command(self) -> str:
        """The command line of the process that began or resumed it last."""
        return str(self._document["command"])

    @property
    def status(self) -> str:
        """`running` (also of a process that was killed), `done`, `failed` or `interrupted`."""
        return str(self._document["status"])

    @property
    def error(self) -> str | None:
        """The message of the exception that ended it."""
        return self._document.get("error")

    @property
    def wall_seconds(self) -> float:
        """Time spent until the last write, over all attempts."""
        return float(self._document["wall_seconds"])

    @property
    def config(self) -> Mapping[str, Any]:
        return ReadBack(self._document["config"])

    @property
    def seeds(self) -> Mapping[str, Any]:
        return ReadBack(self._document["seeds"])

    @property
    def environment(self) -> Mapping[str, Any]:
        return ReadBack(self._document["environment"])

    @property
    def metrics(self) -> Mapping[str, Any]:
        return ReadBack(self._document["metrics"])

    @property
    def stages(self) -> Mapping[str, Stage]:
        return MappingProxyType({name: Stage(**value) for name, value in self._document["stages"].items()})

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(Claim.from_json(from_plain(value)) for value in self._document["claims"])

    @property
    def arrays(self) -> Arrays:
        """The arrays by name, each memory-mapped on access, after its checksum was compared."""
        index = self._document["arrays"]
        if self._arrays is None or self._arrays._index is not index:
            self._arrays = Arrays(self.folder, index, self._arrays)
        return self._arrays

    @property
    def series_names(self) -> tuple[str, ...]:
        """The names of the series."""
        return tuple(self._document.get("series", {}))

    def to_json(self) -> dict[str, Any]:
        """A copy of what `record.json` holds."""
        copy: dict[str, Any] = json.loads(json.dumps(self._document))
        return copy

    def __str__(self) -> str:
        return text_summary(self.folder, self._document)

    def __repr__(self) -> str:
        return f"Record({str(self.folder)!r}, kind={self.kind!r}, name={self.name!r}, status={self.status!r})"

    def _repr_html_(self) -> str:
        return html_summary(self.folder, self._document)

    # -- writing --------------------------------------------------------------------------------------------------

    def count_from(self, began: float) -> None:
        """Count the time of this attempt from `began`, by `time.perf_counter`, instead of from when the record was opened."""
        self._began = began

    def put(self, **values: Any) -> None:
        """Set metrics: numbers, strings, or lists and mappings of them; written immediately."""
        self._write(metrics={**self._document["metrics"], **to_plain(values, "metrics")})

    def claim(self, claim: Claim) -> None:
        """Add a claim, in place of an earlier one with the same id."""
        others = [value for value in self._document["claims"] if value["id"] != claim.id]
        self._write(claims=[*others, to_plain(claim.to_json(), f"claim {claim.id}")])

    def array(self, name: str, value: NDArray[Any] | Tensor) -> None:
        """Keep an array or tensor as `<name>.npy` with its sha256; an earlier one stays until the new one is safe."""
        self._check_writable()
        index = self._document["arrays"]
        try:
            entry = write_array(self.folder, name, value, {other["file"] for other in index.values()})
        except OSError as error:
            raise self._not_written(f"array {name!r}", error) from error
        try:
            self._write(arrays={**index, name: entry})
        except RecordError:
            (self.folder / entry["file"]).unlink(missing_ok=True)
            raise
        if name in index:
            (self.folder / index[name]["file"]).unlink(missing_ok=True)

    def discard(self, *names: str) -> None:
        """Forget arrays and remove their files."""
        self._check_writable()
        index = self._document["arrays"]
        self._write(arrays={name: entry for name, entry in index.items() if name not in names})
        for name in names:
            if name in index:
                (self.folder / index[name]["file"]).unlink(missing_ok=True)

    def series(self, name: str) -> Series:
        """The series `name`: rows that are appended one at a time, O(1) each, in a file of its own.

        A new name begins one, in a record that can be written. Resumed, it continues after its last whole row.

        Examples:
            >>> import tempfile
            >>> with Record.create(tempfile.mkdtemp() + "/run", kind="example") as record:
            ...     for step in range(3):
            ...         record.series("loss").append({"step": step, "loss": 0.5**step})
            >>> Record.open(record.folder).series("loss").columns()
            {'step': [0, 1, 2], 'loss': [1.0, 0.5, 0.25]}
        """
        if name not in self._series:
            index = self._document.get("series", {})
            if name in index and self._writable:
                self._series[name] = Series.resumed(self.folder, name, Known.from_json(index[name]))
                self._series[name].settle = self._write
            elif name in index:
                known = Known.from_json(index[name])
                return Series(self.folder, name, known, tail=self.status == "running")
            elif not self._writable:
                known_names = ", ".join(index) or "(none)"
                raise RecordError(f"{self.folder} holds no series {name!r}; it holds: {known_names}")
            elif not NAME.fullmatch(name):
                raise UsageError(f"series name {name!r}; expected letters, digits, '_', '-' and '.', as in a file name")
            else:
                self._series[name] = Series.new(self.folder, name)
                self._series[name].settle = self._write
                self._write()
        return self._series[name]

    def stage(self, name: str, *, total: int | None = None, progress: bool | Literal["auto"] = False) -> OpenStage:
        """A stage of the run, as a context manager with `.done`, `.advance(n)` and `.message(text)`.

        `.done` starts where an earlier attempt stopped, so a loop over `range(stage.done, total)` continues there. What
        `advance` reports reaches the disk every few seconds, everything else immediately: after a kill, `done` may be a
        little behind the work, never ahead of it.
        """
        return OpenStage(name, self.stages.get(name, Stage()), self._set_stage, total=total, show=progress)

    def finish(self) -> None:
        """Mark the record as done, and let other processes resume it."""
        self._write(status="done", error=None)
        self._release()

    def __enter__(self) -> Record:
        self._check_writable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        finally:
            for series in self._series.values():
                series.close()
            self._release()

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            if self.status == "running":
                self.finish()
            return
        status = "interrupted" if isinstance(error, (KeyboardInterrupt, Terminated)) else "failed"
        try:
            self._write(status=status, error=f"{type(error).__name__}: {error}".rstrip(": "))
        except RecordError as also:  # the first error is the one to see
            error.add_note(f"and the record could not be marked as {status}: {also}")

    def _set_stage(self, name: str, stage: Stage, now: bool) -> None:
        stages = {**self._document["stages"], name: asdict(stage)}
        if now or time.monotonic() - self._written >= WRITE_EVERY:
            self._write(stages=stages)
        else:
            self._document = {**self._document, "stages": stages}

    def _write(self, over: Over = CHECKED, /, **changes: Any) -> None:
        """Write the record with `changes`; memory is updated only after the write succeeded."""
        self._check_writable()
        wall = self._seconds_before + time.perf_counter() - self._began
        document = {**self._document, **changes, "updated": _now(), "wall_seconds": round(wall, 3)}
        try:
            open_series = {name: series.sync().to_json() for name, series in self._series.items()}
            document["series"] = {**document.get("series", {}), **open_series}
            data = record_text(document).encode("utf-8", "replace") + b"\n"
            if len(data) > LARGEST_JSON:  # never write what could not be read back
                raise UsageError(
                    f"{self.folder / FILE} would have {len(data):,} bytes; expected at most {LARGEST_JSON:,}: keep numbers"
                    " with record.array(name, value), histories with record.series(name)"
                )
            with atomic_file(self.folder / FILE, over=over) as handle:
                handle.write(data)
        except FileExistsError:
            raise
        except OSError as error:
            raise self._not_written(FILE, error) from error
        self._document = document
        self._written = time.monotonic()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _check_writable(self) -> None:
        if not self._writable:
            raise RecordError(f"{self.folder} was opened for reading; use Record.resume to continue it")

    def _not_written(self, what: str, error: OSError) -> RecordError:
        return RecordError(
            f"could not write {what} of {self.folder}: {error.strerror or error};"
            " what was recorded before is unchanged: make room or change the permissions there, then resume"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _command() -> str:
    """The command line, with the program's name instead of its local path."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv and sys.argv[0] else "(interactive)"

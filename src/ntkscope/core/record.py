"""The record: a folder that says what ran, how far it came and what it found."""

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

from ntkscope.core.arrays import Arrays, write_array
from ntkscope.core.atomic import atomic_file, remove_leftovers
from ntkscope.core.claims import Claim
from ntkscope.core.environment import environment
from ntkscope.core.errors import RecordError
from ntkscope.core.plain import differences, from_plain, to_plain
from ntkscope.core.stage import OpenStage, Stage
from ntkscope.core.summary import html_summary, text_summary

SCHEMA_VERSION = 1
FILE = "record.json"
STATUSES = ("running", "done", "failed", "interrupted")
WRITE_EVERY = 5.0  # seconds between writes caused by Stage.advance alone
_MAPPINGS = ("config", "seeds", "environment", "stages", "metrics", "arrays")
_REQUIRED = ("kind", "name", "command", "started", "updated", "wall_seconds", "status", "claims", "earlier", *_MAPPINGS)


class Record:
    """A folder with `record.json` and arrays beside it, every write of it atomic.

    `Record.create` starts one, `Record.open` reads one (also while it is written, or after its process was killed),
    `Record.resume` goes on with one. As a context manager it ends as `done`, `failed` or `interrupted`.

    NaN and infinities are written as the texts `"NaN"`, `"Infinity"`, `"-Infinity"` (JSON has no such numbers) and
    read back as numbers.

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
        self._clock_start = time.monotonic()
        self._written = float("-inf")
        self._seconds_before = float(document["wall_seconds"])

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
        """Start a record in `folder`, which is made when it is not there and must hold no record yet."""
        folder = Path(folder)
        if (folder / FILE).exists():
            raise RecordError(
                f"{folder} already holds a record; go on with it by Record.resume, or choose another folder"
            )
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
            "earlier": [],
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot make the folder {folder}: {error}; choose another one") from error
        record = cls(folder, document, writable=True)
        record._write()
        return record

    @classmethod
    def open(cls, folder: str | Path) -> Record:
        """Read the record in `folder`; nothing can be written through what this returns."""
        return cls(Path(folder), _read(Path(folder)), writable=False)

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        seeds: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> Record:
        """Go on with the record in `folder`; a `config` or `seeds` other than the recorded one is refused.

        What ran before is kept under `earlier`, with its environment; wall time adds up.
        """
        folder = Path(folder)
        document = _read(folder)
        for key, given in (("config", config), ("seeds", seeds)):
            found = [] if given is None else differences(document[key], to_plain(given, key))
            if found:
                raise RecordError(
                    f"{folder} was made with another {key} ({'; '.join(found)});"
                    f" go on with the recorded {key}, or choose another folder"
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
        record._write(**changes)
        return record

    # -- what it says ---------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return str(self._document["kind"])

    @property
    def name(self) -> str:
        return str(self._document["name"])

    @property
    def status(self) -> str:
        """`running` (also of a process that was killed), `done`, `failed` or `interrupted`."""
        return str(self._document["status"])

    @property
    def error(self) -> str | None:
        """The text of the exception that ended it."""
        return self._document.get("error")

    @property
    def wall_seconds(self) -> float:
        """Time spent until the last write, over all attempts."""
        return float(self._document["wall_seconds"])

    @property
    def config(self) -> Mapping[str, Any]:
        return _view(self._document["config"])

    @property
    def seeds(self) -> Mapping[str, Any]:
        return _view(self._document["seeds"])

    @property
    def environment(self) -> Mapping[str, Any]:
        return _view(self._document["environment"])

    @property
    def metrics(self) -> Mapping[str, Any]:
        return _view(self._document["metrics"])

    @property
    def stages(self) -> Mapping[str, Stage]:
        return MappingProxyType({name: Stage(**value) for name, value in self._document["stages"].items()})

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(Claim.from_json(from_plain(value)) for value in self._document["claims"])

    @property
    def arrays(self) -> Arrays:
        """The arrays by name, each mapped from the disk when asked for, after its checksum was compared."""
        return Arrays(self.folder, self._document["arrays"])

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

    def put(self, **values: Any) -> None:
        """Set metrics: numbers, texts, or lists and mappings of them; written at once."""
        self._write(metrics={**self._document["metrics"], **to_plain(values, "metrics")})

    def claim(self, claim: Claim) -> None:
        """Add a claim, in place of an earlier one with the same id."""
        others = [value for value in self._document["claims"] if value["id"] != claim.id]
        self._write(claims=[*others, to_plain(claim.to_json(), f"claim {claim.id}")])

    def array(self, name: str, value: NDArray[Any] | Tensor) -> None:
        """Keep an array or tensor as `<name>.npy` with its sha256; one of that name stays until the new one is safe."""
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

    def stage(self, name: str, *, total: int | None = None, progress: bool | Literal["auto"] = False) -> OpenStage:
        """A stage of the run, as a context manager with `.done`, `.advance(n)` and `.message(text)`.

        `.done` starts where an earlier attempt stopped, so a loop over `range(stage.done, total)` goes on. What
        `advance` says reaches the disk every few seconds, everything else at once: after a kill, `done` may be a
        little behind the work, never ahead of it.
        """
        return OpenStage(name, self.stages.get(name, Stage()), self._set_stage, total=total, show=progress)

    def finish(self) -> None:
        """Mark the record as done."""
        self._write(status="done", error=None)

    def __enter__(self) -> Record:
        self._check_writable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self.status == "running":
                self.finish()
            return
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
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

    def _write(self, **changes: Any) -> None:
        """Write the record with `changes`; memory follows only when the disk did."""
        self._check_writable()
        wall = self._seconds_before + time.monotonic() - self._clock_start
        document = {**self._document, **changes, "updated": _now(), "wall_seconds": round(wall, 3)}
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        try:
            with atomic_file(self.folder / FILE) as handle:
                handle.write(text.encode() + b"\n")
        except OSError as error:
            raise self._not_written(FILE, error) from error
        self._document = document
        self._written = time.monotonic()

    def _check_writable(self) -> None:
        if not self._writable:
            raise RecordError(f"{self.folder} was opened for reading; use Record.resume to go on with it")

    def _not_written(self, what: str, error: OSError) -> RecordError:
        return RecordError(
            f"could not write {what} of {self.folder}: {error.strerror or error};"
            " what was recorded before is unchanged: make room or change the permissions there, then resume"
        )


def _read(folder: Path) -> dict[str, Any]:
    """The document in `folder`, checked as far as everything here relies on it."""
    path = folder / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecordError(f"no record in {folder}: there is no {FILE}; give the folder a run wrote to") from error
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}; check the permissions") from error
    except ValueError as error:
        raise RecordError(f"{path} is no record: {error}; expected JSON as ntkscope writes it") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, int) or version < 1:
        raise RecordError(f"{path} is no record: it has schema_version {version!r}; expected 1 to {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema_version {version}; this ntkscope reads up to {SCHEMA_VERSION}: install a newer ntkscope"
        )
    missing = [key for key in _REQUIRED if key not in document]
    wrong = [key for key in _MAPPINGS if not isinstance(document.get(key), dict)]
    if missing or wrong or document["status"] not in STATUSES:
        raise RecordError(
            f"{path} is no whole record: missing {', '.join(missing) or 'nothing'}, not an object:"
            f" {', '.join(wrong) or 'none'}, status {document.get('status')!r}; restore the file or run again"
        )
    return document


def _view(value: dict[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(from_plain(value))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _command() -> str:
    """The command line, with the program as a name and not as a path of this machine."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv and sys.argv[0] else "(interactive)"

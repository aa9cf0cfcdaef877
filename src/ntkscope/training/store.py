"""The store: a folder of snapshots, one file each, read only on access."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ntkscope.core import Snapshot
from ntkscope.core.errors import DataCorrupt, RecordError, StoreError
from ntkscope.core.files.atomic import CHECKED, NEW, Over, is_ours, remove_leftovers, write_file
from ntkscope.core.files.lock import FolderLock
from ntkscope.core.files.plain import differences, to_plain
from ntkscope.core.files.safe_files import LARGEST_JSON, parse_json, read_bytes
from ntkscope.core.files.schema import Mismatch, fields, mapping, optional, whole
from ntkscope.core.identity import Answers
from ntkscope.core.numerics import names_numerics
from ntkscope.training.snapshots import MARK, load_snapshot, save_snapshot

SETTINGS, LATEST = "settings.json", "latest.safetensors"
SCHEMA = 2
_settings = fields(
    {"settings": mapping()},
    {"schema": whole(), "final_step": optional(whole()), "first": optional(mapping()), "answers": mapping()},
)


class SnapshotStore(Mapping[int, Snapshot]):
    """The snapshots in `folder` by step, each read from disk on lookup.

    `latest.safetensors`, where there is one, is where a run that was between chosen steps can be resumed from.

    Examples:
        >>> from ntkscope.core import Part
        >>> training = ns.training.fit(model, Part(x, y), lr=0.1, steps=4, snapshots=2, store=folder)
        >>> _ = training.final()
        >>> store = SnapshotStore(folder)
        >>> list(store), store[4].step, store.final_step
        ([0, 2, 4], 4, 4)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock: FolderLock | None = None

    def __getitem__(self, step: int) -> Snapshot:
        if not self._path(step).exists():
            raise KeyError(f"no snapshot of step {step} in {self.folder}; there are: {', '.join(map(str, self))}")
        snapshot = load_snapshot(self._path(step), store=self._id)
        if snapshot.step != step:
            raise DataCorrupt(
                f"{self._path(step)} holds the snapshot of step {snapshot.step}; expected step {step}: delete it and train"
                " again"
            )
        return snapshot

    def __iter__(self) -> Iterator[int]:
        found = (re.fullmatch(r"step-(\d+)\.safetensors", path.name) for path in self.folder.glob("step-*.safetensors"))
        return iter(sorted(int(match[1]) for match in found if match))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"SnapshotStore({str(self.folder)!r}, steps {list(self)})"

    @property
    def final_step(self) -> int | None:
        """The last step of a run that ended, None while it has not."""
        return self._document().get("final_step")

    @property
    def first(self) -> dict[str, Any] | None:
        """What the first update of the run did, None before it."""
        return self._document().get("first")

    def begin(self, settings: Mapping[str, Any], answers: Answers) -> None:
        """Create the folder for a run with `settings`, or check that it was created for the same, by a network that still gives
        these `answers`."""
        plain = to_plain(settings, "settings")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot create the folder {self.folder}: {error}; choose another one") from error
        self._lock = FolderLock(self.folder)
        if (self.folder / SETTINGS).exists():
            document = self._document()
            if document.get("schema") != SCHEMA:
                raise RecordError(
                    f"{self.folder} holds a run of an earlier ntkscope, which did not keep what tells one network from another;"
                    " its snapshots can be read, but it cannot be resumed: train again in another folder"
                )
            if names_numerics(plain.get("ntkscope")) and not names_numerics(document["settings"].get("ntkscope")):
                raise RecordError(
                    f"{self.folder} holds a run of an earlier ntkscope, which kept a hash of its own source files and not the"
                    " version of its numbers; its snapshots can be read, but it cannot be resumed: train again in another"
                    " folder"
                )
            found = differences(document["settings"], plain)
            if found:
                raise RecordError(
                    f"{self.folder} holds the snapshots of another run ({'; '.join(found[:6])}); train with the same"
                    " settings and the same network as it was before training to resume it, or choose another folder"
                )
            try:
                Answers.from_json(document.get("answers"), str(self.folder)).compare(answers, str(self.folder))
            except StoreError as error:
                raise RecordError(f"{error}") from error
            remove_leftovers(self.folder)
            return
        self._write({"schema": SCHEMA, "settings": plain, "answers": answers.to_json()}, NEW)

    def keep_first(self, told: Mapping[str, Any]) -> None:
        """Keep what the first update did."""
        self._write({**self._document(), "first": dict(told)})

    def add(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of a chosen step."""
        save_snapshot(snapshot, self._path(snapshot.step), store=self._id)

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Save a snapshot to resume from, replacing the one before."""
        save_snapshot(snapshot, self.folder / LATEST, store=self._id)

    def end(self, step: int) -> None:
        """Record that the run ended at `step`."""
        self._write({**self._document(), "final_step": step})
        self._remove(self.folder / LATEST)
        if self._lock is not None:
            self._lock.release()

    def discard(self) -> None:
        """Remove the snapshots and what belongs to them, and the folder unless something else lies in it."""
        if not self.folder.is_dir():
            return
        with FolderLock(self.folder):
            self._document()  # or it is no store
            remove_leftovers(self.folder)
            for path in (*map(self._path, self), self.folder / LATEST):
                self._remove(path)
            (self.folder / SETTINGS).unlink()
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def latest(self) -> Snapshot | None:
        """The furthest snapshot there is, chosen or not."""
        steps = list(self)
        best = self[steps[-1]] if steps else None
        if (self.folder / LATEST).exists():
            checkpoint = load_snapshot(self.folder / LATEST, store=self._id)
            if best is None or checkpoint.step > best.step:
                return checkpoint
        return best

    @staticmethod
    def _remove(path: Path) -> None:
        if is_ours(path, MARK):
            path.unlink()

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    @property
    def _id(self) -> str | None:
        """What binds a snapshot to this store: a hash of the settings; None in a folder of an earlier version."""
        if not (self.folder / SETTINGS).exists():
            return None
        document = self._document()
        return _checksum(document["settings"]) if document.get("schema") == SCHEMA else None

    def _document(self) -> dict[str, Any]:
        path = self.folder / SETTINGS
        try:
            data = read_bytes(path, RecordError, limit=LARGEST_JSON, inside=self.folder)
            document: dict[str, Any] = parse_json(data, SETTINGS, RecordError)
            _settings(document, "")
        except (OSError, Mismatch) as error:
            raise RecordError(
                f"{self.folder} holds no run: {SETTINGS}: {error}; pass a folder that training wrote"
            ) from error
        if "schema" in document and document.get("checksum") != _checksum(document):
            raise RecordError(
                f"{self.folder / SETTINGS} is not what was written (its checksum differs): restore it, or train"
                " again in another folder"
            )
        return document

    def _write(self, document: Mapping[str, Any], over: Over = CHECKED) -> None:
        text = json.dumps({**document, "checksum": _checksum(document)}, indent=1)
        write_file(self.folder / SETTINGS, text.encode() + b"\n", over=over)


def _checksum(document: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()

"""The store: a folder of snapshots, one file each, read only when asked for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ntkscope.core import RecordError, Snapshot
from ntkscope.core.atomic import atomic_file, remove_leftovers
from ntkscope.core.plain import differences, to_plain
from ntkscope.training.snapshots import load_snapshot, save_snapshot

SETTINGS, LATEST = "settings.json", "latest.safetensors"


class SnapshotStore(Mapping[int, Snapshot]):
    """The snapshots in `folder` by step, each read from the disk when looked up.

    `latest.safetensors`, where there is one, is where a run that was not at a chosen step can be gone on from.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def __getitem__(self, step: int) -> Snapshot:
        if not self._path(step).exists():
            raise KeyError(f"no snapshot of step {step} in {self.folder}; there are: {', '.join(map(str, self))}")
        return load_snapshot(self._path(step))

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

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Make the folder for a run with `settings`, or check that it was made for the same."""
        plain = to_plain(settings, "settings")
        if (self.folder / SETTINGS).exists():
            found = differences(self._document()["settings"], plain)
            if found:
                raise RecordError(
                    f"{self.folder} holds the snapshots of another run ({'; '.join(found[:6])}); train with the same"
                    " settings to go on with it, or choose another folder"
                )
            remove_leftovers(self.folder)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write({"settings": plain})

    def add(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of a chosen step."""
        save_snapshot(snapshot, self._path(snapshot.step))

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Keep a snapshot to go on from, in place of the one before."""
        save_snapshot(snapshot, self.folder / LATEST)

    def end(self, step: int) -> None:
        """Say that the run ended at `step`."""
        self._write({**self._document(), "final_step": step})
        (self.folder / LATEST).unlink(missing_ok=True)

    def latest(self) -> Snapshot | None:
        """The furthest snapshot there is, chosen or not."""
        steps = list(self)
        best = self[steps[-1]] if steps else None
        if (self.folder / LATEST).exists():
            checkpoint = load_snapshot(self.folder / LATEST)
            if best is None or checkpoint.step > best.step:
                return checkpoint
        return best

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    def _document(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{self.folder} holds no run: {SETTINGS}: {error}; give a folder training wrote"
            ) from error
        return document

    def _write(self, document: Mapping[str, Any]) -> None:
        with atomic_file(self.folder / SETTINGS) as handle:
            handle.write(json.dumps(document, indent=1).encode() + b"\n")

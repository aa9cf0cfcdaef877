"""The log: a tracker's record on disk, a moment at a time, whole after a kill and continued by the next attempt.

The rows of a moment are written before the row of `moments` that counts it, so that what a kill leaves of a moment is told
apart from a whole one, and dropped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import Record
from ntkscope.core.arguments import path_of
from ntkscope.core.errors import RecordError
from ntkscope.core.records.record_schema import FILE
from ntkscope.core.types import fingerprint
from ntkscope.tracking.weights import directions_for

KIND = "tracking"
MOMENTS = "moments"
INITIAL = "initial"
WEIGHTS = "initial_weights"
SERIES = ("spectra", "spikes", "alignment")
SYNC_SECONDS = 60.0  # between writes of record.json; rows are with the operating system at once
SAMPLED = 1024  # entries of each parameter that tell two starts apart


def start_of(model: nn.Module) -> str:
    """A fingerprint of the weights that a run starts from, of the first entries of every parameter."""
    few = {name: p.detach().flatten()[:SAMPLED].cpu() for name, p in model.named_parameters()}
    return fingerprint(few)


def identity(
    model: nn.Module, probe: str, items: int, watch: Sequence[str], chosen: Mapping[str, Any], directions: Any
) -> dict[str, Any]:
    """What two attempts at one run have in common; `Record.resume` refuses a difference."""
    aimed = directions_for(directions, chosen)
    return {
        "model": type(model).__name__,
        "parameters": {name: list(p.shape) for name, p in model.named_parameters()},
        "probe": probe,
        "probe_items": items,
        "watch": list(watch),
        "directions": None if not aimed else fingerprint(aimed),
    }


class Log:
    """The record in `folder`, open for appending."""

    def __init__(
        self, folder: str | os.PathLike[str], config: Mapping[str, Any], seed: int, device: torch.device
    ) -> None:
        path = path_of(folder, "out")
        self.resumed = os.path.exists(path / FILE)
        if self.resumed:
            found = Record.open(path)
            if found.kind != KIND:
                raise RecordError(
                    f"{path} holds a record of kind {found.kind!r}; expected an empty folder, or the record of a tracker:"
                    " choose another folder"
                )
            self.record = Record.resume(path, config=config, seeds={"probe": seed}, device=device)
        else:
            self.record = Record.create(
                path, kind=KIND, name=config["model"], config=config, seeds={"probe": seed}, device=device
            )
        for name in (MOMENTS, *SERIES):
            self.record.series(name)
        self._synced = time.monotonic()
        self.moments: list[dict[str, Any]] = []
        self._read()

    def _read(self) -> None:
        """The whole moments; rows of a moment that was not finished are dropped."""
        self.moments = []
        for number, row in enumerate(self.record.series(MOMENTS)):
            if row.get("moment") != number:
                break
            self.moments.append(row)
        self.rewind(len(self.moments))

    def rewind(self, count: int) -> None:
        """Keep the first `count` moments only."""
        self.moments = self.moments[:count]
        if len(self.record.series(MOMENTS)) > count:
            self.record.series(MOMENTS).rewind(count)
        for name in SERIES:
            series = self.record.series(name)
            whole = 0
            for row in series:
                if not (isinstance(row.get("moment"), int) and row["moment"] < count):
                    break
                whole += 1
            if whole < len(series):
                series.rewind(whole)

    def append(self, step: int, rows: Mapping[str, Sequence[Mapping[str, Any]]], moment: Mapping[str, Any]) -> None:
        """Add one moment: its rows, then the row that counts it."""
        place = {"moment": len(self.moments), "step": step}
        for name in SERIES:
            for row in rows.get(name, ()):
                self.record.series(name).append({**place, **row})
        whole = {**place, **moment}
        self.record.series(MOMENTS).append(whole)
        self.moments.append(whole)
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.record.put(moments=len(self.moments))
            self._synced = time.monotonic()

    def keep_kernels(self, kernels: Mapping[str, Tensor]) -> None:
        """Keep the kernels of moment 0, which a resumed run needs to compare later ones with."""
        for name, K in kernels.items():
            self.record.array(f"{INITIAL}.{name}", K.to(torch.float32))

    def kernels(self) -> dict[str, Tensor]:
        """The kernels of moment 0, as far as they are there."""
        names = [name for name in self.record.arrays if name.startswith(f"{INITIAL}.")]
        return {
            name.removeprefix(f"{INITIAL}."): torch.from_numpy(self.record.arrays[name].astype("float64"))
            for name in names
        }

    def keep_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Keep the weights of moment 0, (out, in) each, one after the other."""
        if weights:
            self.record.put(**{WEIGHTS: {name: list(weight.shape) for name, weight in weights.items()}})
            joined = torch.cat([weight.flatten() for weight in weights.values()])
            self.record.array(WEIGHTS, joined.to(torch.float32))

    def weights(self) -> dict[str, Tensor]:
        """The weights of moment 0, as far as they are there."""
        shapes = self.record.metrics.get(WEIGHTS)
        if not isinstance(shapes, Mapping) or WEIGHTS not in self.record.arrays:
            return {}
        whole = torch.from_numpy(self.record.arrays[WEIGHTS].astype("float64"))
        sizes = [int(rows) * int(columns) for rows, columns in shapes.values()]
        if whole.ndim != 1 or min(sizes, default=0) < 1 or sum(sizes) != len(whole):
            return {}  # not what this version wrote: the centred correlation is left out
        return {name: part.reshape(*shapes[name]) for name, part in zip(shapes, whole.split(sizes), strict=True)}

    def close(self, error: BaseException | None, **facts: Any) -> None:
        """End the record: done, failed or interrupted, as `error` says."""
        self.record.put(moments=len(self.moments), **facts)
        self.record.__exit__(None if error is None else type(error), error, None)

"""A tracked training that an X-ray is given: whether it is of this network, and its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ntkscope.core import Record, UsageError
from ntkscope.core.records.record_id import record_id
from ntkscope.tracking.log import KIND
from ntkscope.tracking.weights import as_matrix, matrices

WEIGHTS = "weights:"
SERIES = ("moments", "spectra", "spikes", "alignment")
SAME = 1e-4  # of a norm: rows have seven digits, weights may have been stored with fewer


@dataclass(frozen=True, eq=False)
class Tracked:
    """The record of a training, its size, and the weights in it by their names in the network, with their last spectra."""

    record: Record
    bytes: int
    moments: int
    last: Mapping[str, Mapping[str, Any]]

    @property
    def identity(self) -> dict[str, Any]:
        """What an X-ray that is resumed compares."""
        return {"record": record_id(self.record), "moments": self.moments}

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of one series; none where the tracker did not write it."""
        if name in self.record.series_names:
            yield from self.record.series(name)

    def ends_here(self, model: nn.Module) -> bool | None:
        """Whether the last moment has the network's weights, by their norms; None where that cannot be told.

        A norm is the root of the sum of squared singular values, if all of them were written.
        """
        mine = matrices(model)
        told = [
            math.isclose(
                math.hypot(*row["values"]), float(as_matrix(mine[name]).double().norm()), rel_tol=SAME, abs_tol=1e-12
            )
            for name, row in self.last.items()
            if not row.get("left_out") and row.get("values")
        ]
        return all(told) if told else None


def tracked_training(folder: str | Path | None, model: nn.Module) -> Tracked | None:
    """The record of a tracked training in `folder`; an error unless it has moments and its weights are those of `model`.

    O(bytes of the spectra).
    """
    if folder is None:
        return None
    if not isinstance(folder, str | Path):
        raise UsageError(
            f"got tracked={folder!r:.80}; expected the folder that ntkscope.Tracker wrote (its `out`), or None without one"
        )
    record = Record.open(folder)
    if record.kind != KIND:
        raise UsageError(
            f"got tracked={str(folder)!r}, a record of kind {record.kind!r}; expected one of kind {KIND!r}: the folder that"
            " ntkscope.Tracker was given as `out`"
        )
    held = [name for name in SERIES if name in record.series_names]
    if "moments" not in held or not len(record.series("moments")):
        raise UsageError(
            f"got tracked={str(folder)!r}, which holds no moment yet; expected a training with at least one measurement: wait"
            " for it, or leave tracked out"
        )
    last: dict[str, dict[str, Any]] = {}
    if "spectra" in held:
        for row in record.series("spectra"):
            if str(row.get("of", "")).startswith(WEIGHTS) and isinstance(row.get("shape"), list):
                last[str(row["of"]).removeprefix(WEIGHTS)] = row
    written = record.config.get("parameters")  # the tracker may have watched kernels alone
    if isinstance(written, Mapping) and written:
        _renamed(dict(written), {name: list(p.shape) for name, p in model.named_parameters()}, record.folder)
    renamed = _renamed(
        {name: row["shape"] for name, row in last.items()},
        {name: list(as_matrix(weight).shape) for name, weight in matrices(model).items()},
        folder,
    )
    size = sum(record.series(name).path.stat().st_size for name in held)
    return Tracked(record, size, len(record.series("moments")), {renamed[name]: row for name, row in last.items()})


def _renamed(told: Mapping[str, Any], mine: Mapping[str, list[int]], folder: str | Path) -> dict[str, str]:
    """The network's own names of what is in the record; a wrapper's prefix (`model.`, `_orig_mod.`) on either side is ignored.

    >>> _renamed({"model.fc.weight": [3, 2]}, {"fc.weight": [3, 2]}, "run")
    {'model.fc.weight': 'fc.weight'}
    """
    more = {name.removesuffix(own) for name in told for own in mine if name.endswith(f".{own}")}
    less = {own.removesuffix(name) for name in told for own in mine if own.endswith(f".{name}")}
    prefixes = [("", ""), *((prefix, "") for prefix in sorted(more)), *(("", prefix) for prefix in sorted(less))]
    for wrapper, inner in prefixes:
        named = {name: inner + name.removeprefix(wrapper) for name in told if name.startswith(wrapper)}
        if len(named) == len(told) and all(mine.get(own) == list(told[name]) for name, own in named.items()):
            return named
    wrong = [name for name, shape in told.items() if mine.get(name) != list(shape)][:3]
    there = ", ".join(f"{name} is {_size(told[name])}" for name in wrong)
    here = ", ".join(f"{name} is {_size(mine[name])}" if name in mine else f"there is no {name}" for name in wrong)
    raise UsageError(
        f"got tracked={str(folder)!r}, the training of another network: there {there}; in this network {here}; expected the"
        " record of this network's training, or none (leave tracked out)"
    )


def _size(shape: Any) -> str:
    return " × ".join(map(str, shape))

"""Legs computed once more, in a record of their own, and what comes out otherwise than in the record they are of."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ntkscope.core import Record, UsageError
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.provenance import is_result


def again(
    record: Record,
    legs: Sequence[str],
    *,
    experiment: type[Experiment],
    within: float = 0.0,
    device: torch.device | None = None,
    root: str | None = None,
    progress: bool = False,
) -> tuple[list[str], list[str]]:
    """The results computed again, and a line for each number that differs from the record's by more than `within`, relatively.

    Everything is made anew, networks too, in a folder that is removed at the end. Seconds are not compared.
    """
    config = replace(experiment.of(record), legs=tuple(legs))
    seed = int(record.seeds.get("seed", 0))
    with tempfile.TemporaryDirectory(prefix="ntkscope-again-") as place:
        shared: dict[str, Any] = {"config": dict(record.config), "seeds": dict(record.seeds), "device": device}
        with Record.create(Path(place) / "run", kind=record.kind, name=record.name, **shared) as other:
            config.measure(Run(config, other, device or torch.device("cpu"), root, seed, progress))
        made = [key for key, value in other.metrics.items() if is_result(value)]
        known = [key for key in made if key in record.metrics]
        if not known:
            raise UsageError(f"{record.folder} holds no result of {', '.join(made) or legs}; expected legs that it has")
        lines = [line for key in known for line in unlike(record.metrics[key], other.metrics[key], within, key)]
        for name in other.arrays:
            if name in record.arrays and record.arrays.kept(name):
                lines += unlike(record.arrays[name], other.arrays[name], within, f"array {name}")
    return known, lines


def unlike(before: Any, now: Any, within: float, where: str) -> Iterator[str]:
    """Where two results differ, in words.

    >>> list(unlike({"a": [1.0, 2.0], "seconds": 1.0}, {"a": [1.0, 2.5], "seconds": 9.0}, 0.1, "leg"))
    ['leg a[1]: 2.0 in the record, 2.5 now']
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}, key=str):
            if not str(key).endswith("seconds"):
                yield from unlike(before.get(key), now.get(key), within, f"{where} {key}")
    elif isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        for i, pair in enumerate(zip(before, now)):
            yield from unlike(*pair, within, f"{where}[{i}]")
    elif isinstance(before, np.ndarray) and isinstance(now, np.ndarray) and before.shape == now.shape:
        if not np.allclose(before, now, rtol=within, atol=0.0, equal_nan=True):
            gap = float(np.nanmax(np.abs(np.asarray(before, float) - np.asarray(now, float))))
            yield f"{where}: differs by up to {gap:.3g}"
    elif isinstance(before, float) and isinstance(now, float):
        same = before == now or (math.isnan(before) and math.isnan(now))
        if not same and not math.isclose(before, now, rel_tol=within, abs_tol=0.0):
            yield f"{where}: {before!r} in the record, {now!r} now"
    elif type(before) is not type(now) or before != now:
        yield f"{where}: {before!r:.80} in the record, {now!r:.80} now"

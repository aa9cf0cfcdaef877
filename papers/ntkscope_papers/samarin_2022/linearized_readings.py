"""What a record of `linearized-lenet` says: accuracies, gaps and likeness of networks and linearisations, by task and width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework.results import summary

TASKS = ("mnist", "shifted", "cifar10")


def widths(record: Record, task: str) -> list[int]:
    """Those whose network and linearisation were both trained."""
    prefix = f"train/{task}/x"
    found = {int(key.removeprefix(prefix).split("/")[0]) for key in record.metrics if key.startswith(prefix)}
    return sorted(w for w in found if all(f"{prefix}{w}/{kind}" in record.metrics for kind in ("network", "linear")))


def accuracies(record: Record, task: str, width: int, kind: str, where: str = "test") -> list[float]:
    """Of every seed; a run that diverged counts as 0, which no classifier of ten classes reaches."""
    runs = record.metrics[f"train/{task}/x{width}/{kind}"]["runs"]
    return [0.0 if run[where] is None else run[where] for run in runs]


def gaps(record: Record, task: str, width: int, where: str = "test") -> dict[str, float]:
    """Network minus linearisation of every pair, in points: mean, standard error, how many."""
    pair = [accuracies(record, task, width, kind, where) for kind in ("network", "linear")]
    return summary(a - b for a, b in zip(*pair))


def paired(record: Record) -> dict[str, bool]:
    """Whether every network and its linearisation began at the same weights and saw the same batches."""
    found = {}
    for task in TASKS:
        for width in widths(record, task):
            one, two = (record.metrics[f"train/{task}/x{width}/{kind}"] for kind in ("network", "linear"))
            found[f"{task} x{width}"] = one["weights"] == two["weights"] and one["batches"] == two["batches"]
    return found


def statistics_distance(record: Record, task: str, width: int) -> float:
    """Between mean and standard deviation of the outputs of network and linearisation, root mean square over training."""
    one, two = (record.metrics[f"train/{task}/x{width}/{kind}"]["curve"] for kind in ("network", "linear"))
    squares = [
        np.square(np.array(a[what]) - np.array(b[what])).mean()
        for epoch in one
        if float(epoch) > 0
        for a, b in zip(one[epoch], two[epoch])
        for what in ("mean", "std")
    ]
    return float(np.sqrt(np.mean(squares)))


def compared(record: Record, task: str) -> list[int]:
    """The widths whose outputs on the watched test images are in the record, of the network and of its linearisation."""
    pairs = {w: [f"outputs-{task}-x{w}-{kind}" for kind in ("network", "linear")] for w in widths(record, task)}
    return [width for width, names in pairs.items() if all(name in record.arrays for name in names)]


def likeness(record: Record, task: str, width: int) -> dict[str, float]:
    """Agreement (percent) and correlation of the outputs of network and linearisation on the kept test images."""
    one, two = (
        np.asarray(record.arrays[f"outputs-{task}-x{width}-{kind}"], dtype=np.float64) for kind in ("network", "linear")
    )
    agree = (one.argmax(2) == two.argmax(2)).mean()
    flat = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(one, two)]
    return {"agreement": round(100 * float(agree), 2), "correlation": round(float(np.mean(flat)), 4)}


def best_point(points: list[Mapping[str, Any]], by: str) -> Mapping[str, Any]:
    """The point of a grid with the best accuracy `by` "validation" or "test"; a diverged one is the worst."""
    return max(points, key=lambda point: -1.0 if point[by] is None else point[by])


def searched(record: Record, name: str, variant: str) -> dict[str, float]:
    """Rate and decay of cross-entropy by validation; nothing if they were not searched for, or for other variants."""
    found = record.metrics.get(f"{variant}-grid/{name}")
    if found is None:
        return {}
    best = max(found["points"], key=lambda point: point["validation"] or 0.0)
    return {key: best[key] for key in ("lr", "weight_decay")}

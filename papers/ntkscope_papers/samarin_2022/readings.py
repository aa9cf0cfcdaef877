"""What records say by width: accuracies, gaps and likeness of networks and their linearisations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework.results import summary

TASKS = ("mnist", "shifted", "cifar10")


def by_width(record: Record, prefix: str, suffix: str = "") -> dict[str, Mapping[str, Any]]:
    """Results whose keys are a width, "x1", "x2", ..., between `prefix` and `suffix`; ascending."""
    found = {
        key.removeprefix(prefix).removesuffix(suffix): value
        for key, value in record.metrics.items()
        if key.startswith(prefix) and key.endswith(suffix)
    }
    return dict(sorted(found.items(), key=lambda item: float(item[0][1:])))


def pairs(record: Record, prefix: str) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Results of a network and its linearisation, by width, where both were trained."""
    network, linear = (by_width(record, prefix, f"/{kind}") for kind in ("network", "linear"))
    return {width: (network[width], linear[width]) for width in network if width in linear}


def paired(record: Record, leg: str, tasks: Iterable[str]) -> dict[str, bool]:
    """Whether a network and its linearisation began at the same weights and saw the same batches, by task and width."""
    return {
        f"{task} {width}": all(one[name] == two[name] for name in ("weights", "batches"))
        for task in tasks
        for width, (one, two) in pairs(record, f"{leg}/{task}/").items()
    }


def widths(record: Record, task: str) -> list[int]:
    """Those whose network and linearisation were both trained on a task of `linearized-lenet`."""
    return [int(width[1:]) for width in pairs(record, f"train/{task}/")]


def accuracies(record: Record, task: str, width: int, kind: str, where: str = "test") -> list[float]:
    """Of every seed; a run that diverged counts as 0, which no classifier of ten classes reaches."""
    runs = record.metrics[f"train/{task}/x{width}/{kind}"]["runs"]
    return [0.0 if run[where] is None else run[where] for run in runs]


def gaps(record: Record, task: str, width: int) -> dict[str, float]:
    """Network minus linearisation of every pair, in test points: mean, standard error, how many."""
    pair = [accuracies(record, task, width, kind) for kind in ("network", "linear")]
    return summary(a - b for a, b in zip(*pair))


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


def outputs_of(record: Record, task: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of network and linearisation on the kept test images, (seeds, items, classes)."""
    one, two = (
        np.asarray(record.arrays[f"outputs-{task}-x{width}-{kind}"], dtype=np.float64) for kind in ("network", "linear")
    )
    return one, two


def outputs_distance(record: Record, task: str, width: int) -> float:
    """Between those outputs at the end, root mean square."""
    one, two = outputs_of(record, task, width)
    return float(np.sqrt(np.square(one - two).mean()))


def compared(record: Record, task: str) -> list[int]:
    """The widths whose outputs on the watched test images are in the record, of the network and of its linearisation."""
    pairs = {w: [f"outputs-{task}-x{w}-{kind}" for kind in ("network", "linear")] for w in widths(record, task)}
    return [width for width, names in pairs.items() if all(name in record.arrays for name in names)]


def likeness(record: Record, task: str, width: int) -> dict[str, float]:
    """Agreement (percent) and correlation of the outputs of network and linearisation on the kept test images."""
    one, two = outputs_of(record, task, width)
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

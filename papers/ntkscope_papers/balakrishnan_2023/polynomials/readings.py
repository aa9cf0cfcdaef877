"""What a record says of the networks and kernel machines of `hidden-polynomial`: widths and rates chosen, scores over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.polynomials.data import AUTHORS, CHOSEN, Task
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Reading, Statement, claim, lacking
from ntkscope_papers.framework.intervals import ANY, interval, short

SYMMETRIC = "damian/networks"
GROUPS = {"hidden": ("isotropic", "correlated"), "direct": ("direct",)}
FITS, FAILS = 0.7, 0.3  # R² from which on a network fits, up to which it does not
ROUGH = 0.5  # R² of a fit that may be rough
NETWORKS, MACHINES = 10, 3  # seeds that a check needs


def networks_key(group: str, width: int, rate: float) -> str:
    return f"networks/{group}/{width}/{rate:g}"


def kernels_key(task: Task) -> str:
    return f"kernels/{task.key}"


def array_name(task: Task) -> str:
    """Of the test predictions of seed 0: rows v, y, network and, if there are any, machines."""
    return "predictions-" + task.key.replace("/", "-")


def tasks_of(config: Any, group: str) -> list[Task]:
    """Every task of the networks that train together."""
    if group.startswith(AUTHORS):
        return [Task("isotropic", int(group.removeprefix(f"{AUTHORS}/")), AUTHORS)]
    return [
        Task(kind, degree, target)
        for target in config.targets
        for kind in GROUPS[group]
        for degree in getattr(config, kind)
    ]


def group_of(task: Task) -> str:
    if task.target == AUTHORS:
        return f"{AUTHORS}/{task.degree}"
    return "direct" if task.kind == "direct" else "hidden"


class Results:
    """The record of a configuration, by task."""

    def __init__(self, config: Any, record: Record) -> None:
        self.config, self.metrics = config, record.metrics

    def settings(self, task: Task) -> list[tuple[int, float]]:
        """The widths and rates that were tried."""
        if task.target == AUTHORS:
            return [(CHOSEN[task.degree][0], 1.0)]
        return [(width, rate) for width in self.config.widths for rate in self.config.rates]

    def missing(self, tasks: Sequence[Task], kernels: bool = False) -> tuple[str, ...]:
        """The legs that these tasks need and the record lacks."""
        wanted = [networks_key(group_of(task), *setting) for task in tasks for setting in self.settings(task)]
        wanted += [kernels_key(task) for task in tasks] if kernels else []
        return tuple(dict.fromkeys(key for key in wanted if key not in self.metrics))

    def chosen(self, task: Task) -> tuple[int, float]:
        """Width and rate with the smallest mean validation MSE."""
        return min(self.settings(task), key=lambda each: float(np.mean(self._scores(task, each)["mse validation"])))

    def _scores(self, task: Task, setting: tuple[int, float]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.metrics[networks_key(group_of(task), *setting)]["tasks"][task.key]
        return found

    def network(self, task: Task) -> Mapping[str, Any]:
        """Scores of the networks of the chosen width and rate, over seeds."""
        return self._scores(task, self.chosen(task))

    def moments(self, task: Task) -> list[float]:
        """The epochs at which alignment was measured, without the column of the weights returned."""
        found: list[float] = self.metrics[networks_key(group_of(task), *self.chosen(task))]["moments"]
        return found

    def r2(self, task: Task) -> Float64[np.ndarray, " seeds"]:
        return np.array(self.network(task)["r2 test"])

    def machine(self, task: Task, model: str, what: str = "mse test") -> Float64[np.ndarray, " seeds"]:
        """Of a kernel machine, over the seeds that have one."""
        return np.array(self.metrics[kernels_key(task)]["models"][model][what])

    def paired(self, task: Task, what: str = "mse test") -> Float64[np.ndarray, " seeds"]:
        """Of the networks, for the seeds that have kernel machines."""
        count = len(self.machine(task, "ntk svr"))
        return np.array(self.network(task)[what])[:count]

    def aligned(self, task: Task) -> Float64[np.ndarray, "seeds moments"]:
        """The share of aligned units at `moments`."""
        return np.array(self.network(task)["aligned"])[:, :-1]

    def largest(self, task: Task) -> tuple[Float64[np.ndarray, " seeds"], Float64[np.ndarray, " seeds"]]:
        """The largest |cos| of a unit at the start, and of the weights returned."""
        found = np.array(self.network(task)["largest"])
        return found[:, 0], found[:, -1]


def highest(fits: Mapping[int, bool]) -> int | None:
    """The highest degree that is fitted, if any.

    >>> highest({3: True, 4: False, 5: True}), highest({3: False})
    (5, None)
    """
    return max((degree for degree, fitted in fits.items() if fitted), default=None)


def threshold(values: Mapping[int, float]) -> int | None:
    """The lowest degree that is fitted (R² ≥ 0.7) while the next one is not (R² ≤ 0.3); None if there is none.

    >>> threshold({6: 0.9, 7: 0.8, 8: 0.1}), threshold({6: 0.9, 7: 0.5, 8: 0.1})
    (7, None)
    """
    return next((d for d in sorted(values) if values[d] >= FITS and values.get(d + 1, 1.0) <= FAILS), None)


def over_seeds(values: Any, within: tuple[float, float] = ANY) -> dict[str, Any]:
    """Mean over seeds and its 95 % interval, as a claim shows it."""
    return short(interval(np.asarray(values, dtype=np.float64), within))


def first_epochs(shares: Float64[np.ndarray, "seeds moments"], moments: Sequence[float], least: float) -> list[float]:
    """The first of the moments at which the share is reached, of each seed; infinite if it never is.

    >>> first_epochs(np.array([[0.0, 0.1, 0.1], [0.0, 0.0, 0.0]]), [0, 1, 2], 0.05)
    [1.0, inf]
    """
    reached = shares >= least
    return [float(moments[int(row.argmax())]) if row.any() else float("inf") for row in reached]


def draw_predictions(axis: Any, v: Any, y: Any, predicted: Any, colour: str, label: str | None = None) -> None:
    """The polynomial as a line, and what is said of the items."""
    order = np.argsort(v)
    axis.plot(v[order], y[order], color="#999999", linewidth=1, label=label and "true")
    axis.scatter(v, predicted, s=4, alpha=0.5, linewidths=0, color=colour, label=label)


def draw_means(axis: Any, at: Sequence[int], told: Sequence[Mapping[str, float]], which: int, label: str) -> None:
    """Means with the lower half of their intervals."""
    errors = [one["mean"] - one["low"] for one in told]
    drawing.line_with_errors(axis, at, [one["mean"] for one in told], errors, which, label)


Judged = Callable[[Results, Sequence[Task]], tuple[Any, bool]]


def on_targets(
    id: str, source: str, published: Any, *, kernels: bool = False, note: str = "", **degrees: tuple[int, ...]
) -> Callable[[Judged], Statement]:
    """Decorator: a claim about raw targets, by the authors' own settings where those were run; what holds otherwise is in the
    note. `degrees`: those of each kind whose networks, and with `kernels` machines, it reads; () for all of them."""

    def read(judged: Judged, config: Any, record: Record) -> Reading:
        results, measured, holds = Results(config, record), {}, {}
        lacks: tuple[str, ...] = ()
        for target in (*config.targets, AUTHORS):
            tasks = [Task(kind, d, target) for kind, some in degrees.items() for d in some or getattr(config, kind)]
            absent = [task.key for task in tasks if task.degree not in getattr(config, task.kind)]
            if absent:
                return Reading(None, note=f"not in this configuration: {', '.join(absent)}")
            if target == AUTHORS and not (tasks and all(task.kind == "isotropic" for task in tasks)):
                continue
            missing = results.missing(tasks, kernels)
            if not missing:
                measured[target], holds[target] = judged(results, tasks)
            elif target != AUTHORS:
                lacks = (*lacks, *missing)
        first = AUTHORS if AUTHORS in measured else config.targets[0]
        if first not in measured:
            return lacking(*dict.fromkeys(lacks))
        words = [note] if note else []
        words += ["judged by the settings of the public code"] if first == AUTHORS else []
        words += [
            f"the check {'holds' if held else 'does not hold'} with {target} targets"
            for target, held in holds.items()
            if target != first
        ]
        count = config.kernel_seeds if kernels else config.seeds
        measured = {first: measured[first], **measured}  # what is judged comes first
        return Reading(measured, bool(holds[first]), "; ".join(words), tuple(dict.fromkeys(lacks)), seeds=count)

    return claim(id, source, published, seeds=MACHINES if kernels else NETWORKS, through=read)

"""Figures 3 to 5 of Balakrishnan (2023) from a record, and R² by degree of every model with its interval over seeds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.polynomials.data import Task
from ntkscope_papers.balakrishnan_2023.polynomials.readings import Results, array_name, kernels_key
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.intervals import interval

MODELS = {"network": "network", "ntk": "SVR, NTK", "rbf": "SVR, RBF"}
SHOWN = {"figure3": ("isotropic", "network", (7, 8)), "figure4": ("direct", "network", (18, 19))}
SHOWN |= {"figure5": ("isotropic", "ntk", (7, 8)), "rbf": ("isotropic", "rbf", (7, 8))}
SHOWN |= {"correlated": ("correlated", "network", (11, 12))}


def draw(record: Record) -> dict[str, Any]:
    """What the record has of: scatter plots of single seeds, R² and MSE by degree, alignment by epoch."""
    config = SimpleNamespace(**record.config)
    results = Results(config, record)
    found: dict[str, Any] = {}
    for name, (kind, model, degrees) in SHOWN.items():
        tasks = [Task(kind, degree, config.targets[0]) for degree in degrees]
        if all(array_name(task) in record.arrays for task in tasks):
            found[name] = _scatter(record, tasks, model)
    for kind in ("isotropic", "correlated", "direct"):
        if not results.missing(
            [Task(kind, degree, target) for target in config.targets for degree in getattr(config, kind)]
        ):
            found[f"degrees-{kind}"] = _by_degree(results, kind)
    first = config.targets[0]
    if not results.missing([Task("isotropic", degree, first) for degree in config.isotropic]):
        found["alignment"] = _alignment(results, first)
    if not found:
        figure, (axis,) = drawing.canvas()
        axis.set_title("no network is trained yet")
        found["degrees"] = figure
    return found


def _scatter(record: Record, tasks: list[Task], model: str) -> Any:
    figure, axes = drawing.canvas(1, len(tasks))
    for axis, task in zip(axes, tasks):
        rows = record.arrays[array_name(task)]
        v, y, predicted = rows[0], rows[1], rows[2 + list(MODELS).index(model)]
        order = np.argsort(v)
        axis.plot(v[order], y[order], color="#999999", linewidth=1, label="true")
        axis.scatter(v, predicted, s=4, alpha=0.5, linewidths=0, color=drawing.COLOURS[0], label=MODELS[model])
        drawing.label(axis, title=f"{task.kind}, degree {task.degree}, test items, one seed", x="v", legend=True)
    return figure


def _by_degree(results: Results, kind: str) -> Any:
    """R² and MSE over test items, one row for each kind of targets; means over seeds with their 95 % intervals."""
    targets = results.config.targets
    figure, axes = drawing.canvas(len(targets), 2)
    for i, target in enumerate(targets):
        _row(axes[2 * i : 2 * i + 2], results, kind, target)
    return figure


def _row(axes: list[Any], results: Results, kind: str, target: str) -> None:
    tasks = [Task(kind, degree, target) for degree in getattr(results.config, kind)]
    series = {"network": [(task, results.network(task)) for task in tasks]}
    done = [task for task in tasks if kernels_key(task) in results.metrics]
    for model in ("ntk svr", "ntk squared svr", "ntk ridge", "rbf svr", "rbf ridge") if done else ():
        series[model] = [(task, results.metrics[kernels_key(task)]["models"][model]) for task in done]
    for k, (name, rows) in enumerate(series.items()):
        for axis, what in zip(axes, ("r2 test", "mse test")):
            told = [interval(scores[what]) for _, scores in rows]
            errors = [one["mean"] - one["low"] for one in told]
            degrees = [task.degree for task, _ in rows]
            drawing.line_with_errors(axis, degrees, [one["mean"] for one in told], errors, k, name)
    constant = [interval(results.network(task)["variance"])["mean"] for task in tasks]
    axes[1].plot([task.degree for task in tasks], constant, "--", color="#999999", label="constant")
    axes[0].set_ylim(-0.3, 1.05)
    drawing.plain_log(axes[1])
    for axis, label in zip(axes, ("R²", "MSE")):
        drawing.label(axis, x="degree", y=f"{label}, test items")
    axes[0].set_title(f"{kind}, {target} targets")
    axes[1].legend()


def _alignment(results: Results, target: str) -> Any:
    """The share of aligned units by epoch, means over seeds."""
    figure, (axis,) = drawing.canvas(width=5.6)
    for degree in results.config.isotropic:
        task = Task("isotropic", degree, target)
        moments = results.moments(task)
        few = [i for i, moment in enumerate(moments) if moment <= results.config.follow]
        shares = results.aligned(task).mean(0)
        style = "-" if degree % 2 else "--"  # an odd degree and the even one above it share a colour
        colour = drawing.COLOURS[(degree - 1) // 2 % len(drawing.COLOURS)]
        axis.plot([moments[i] for i in few], shares[few], style, color=colour, label=f"degree {degree}")
    drawing.label(axis, x="epoch", y="share of units with |cos| ≥ 0.7")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure

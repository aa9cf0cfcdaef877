"""Figures 8 to 19 of Balakrishnan (2023) from a record, everything on one axis of epochs, and what came first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.alignment.readings import numbers
from ntkscope_papers.balakrishnan_2023.alignment.summary import LEAST_FALL, LEAST_RISE, correlations, fits
from ntkscope_papers.balakrishnan_2023.alignment.tasks import TASKS, Polynomial, Task
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.intervals import interval

GREY = "#999999"


def array_name(task: str, what: str) -> str:
    """Of an array in the record.

    >>> array_name("mnist/small", "times")
    'times-mnist-small'
    """
    return f"{what}-{task.replace('/', '-')}"


def draw(record: Record) -> dict[str, Any]:
    """For every task of the record that is to be drawn its path and, for polynomials, its figures; then the lags of all.

    A record that was gathered from others may lack their arrays; figures of those tasks are left out.
    """
    found: dict[str, Any] = {}
    for one in TASKS:
        there = one.name in record.metrics and record.arrays.kept(array_name(one.name, "times"))
        if not there or one.name not in record.config["drawn"]:
            continue
        name = one.name.replace("/", "-")
        found[f"path-{name}"] = path(record, one)
        if isinstance(one, Polynomial):
            found[f"figures-{name}"] = moments(record, one)
    found["silence"] = lags(record)
    return found


def _array(record: Record, one: Task, what: str) -> np.ndarray:
    return np.asarray(record.arrays[array_name(one.name, what)], dtype=np.float64)


def _seeds(axis: Any, times: np.ndarray, rows: np.ndarray, colour: int, label: str) -> None:
    """Every seed thin, their mean thick."""
    shade = drawing.COLOURS[colour]
    for row in rows:
        axis.plot(times, row, color=shade, linewidth=0.5, alpha=0.35)
    axis.plot(times, rows.mean(0), color=shade, linewidth=1.8, label=label)


def path(record: Record, one: Task) -> Any:
    """Cosines; the tangent machine's correlation and fit; alignment and loss, each as a share of the way it went."""
    times = _array(record, one, "times")
    close = times <= record.config["followed"]
    losses, alignments = _array(record, one, "series")
    row = record.metrics[one.name]
    S = len(row["network"]["fit"])
    panels = [isinstance(one, Polynomial), one.fitted, True]
    figure, axes = drawing.canvas(1, sum(panels), width=4.4, height=3.2)
    places = iter(axes)
    if panels[0]:
        axis = next(places)
        sizes = np.abs(_array(record, one, "cosines"))[:S, :-1]
        for level, colour in ((0.5, 2), (0.9, 1), (1.0, 0)):
            label = "largest" if level == 1 else f"{level:.0%} quantile"
            _seeds(axis, times, np.quantile(sizes, level, axis=-1), colour, label)
        axis.set_ylabel("|cosine| with the hidden direction")
        axis.set_ylim(0, 1)
    if panels[1]:
        axis = next(places)
        predictions, targets = _array(record, one, "predictions")[:, :-1], _array(record, one, "targets")
        scale = targets.std(-1)[:, None]
        together = correlations(predictions, _array(record, one, "networks")[:, None], scale)
        _seeds(axis, times[close], together[:, close], 0, "correlation with the trained network")
        _seeds(axis, times[close], fits(predictions, targets[:, None])[:, close], 1, "R² on the targets")
        axis.set_ylim(-0.25, 1.02)
        axis.set_ylabel("kernel machine of that moment")
    axis = next(places)
    for values, colour, label, least in (
        (alignments[:S, close], 3, "kernel alignment, of its rise", LEAST_RISE),
        (-losses[:S, close], 4, "loss, of its fall", LEAST_FALL * losses[:S, :1]),
    ):
        dated = _share(values, least)
        if len(dated):
            _seeds(axis, times[close], dated, colour, f"{label} ({len(dated)} of {S} seeds)")
    axis.set_ylim(-0.6, 1.05)
    axis.axhline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    axis.set_ylabel("share of the way")
    for axis in axes:
        axis.set_xlabel("epoch")
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    figure.suptitle(one.name, fontsize=10)
    return figure


def _share(rows: np.ndarray, least: float | np.ndarray) -> np.ndarray:
    """From 0 at the start to 1 at the largest value, for those rows that rise by `least`: smaller ones are not dated.

    >>> _share(np.array([[1.0, 2.0, 3.0], [1.0, 1.001, -5.0]]), 0.1).tolist()
    [[0.0, 0.5, 1.0]]
    """
    rise = rows.max(1, keepdims=True) - rows[:, :1]
    dated = ((rise >= least) & (rise > 0))[:, 0]
    return (rows[dated] - rows[dated, :1]) / rise[dated]


def moments(record: Record, one: Polynomial) -> Any:
    """Of the first seed: cosines of all units, machine against network, machine over v; at the start, one epoch, the end."""
    times = _array(record, one, "times")
    shown = int(np.argmin(np.abs(times - one.shown)))
    columns = {
        "before training": 0,
        f"after {times[shown]:g} epoch{'' if times[shown] == 1 else 's'}": shown,
        "trained": -1,
    }
    figure, axes = drawing.canvas(3 if one.fitted else 1, 3, width=3.4, height=2.6)
    cosines = _array(record, one, "cosines")[0]
    for axis, (title, k) in zip(axes, columns.items()):
        axis.scatter(range(cosines.shape[1]), cosines[k], s=3, color=drawing.COLOURS[0], linewidths=0)
        axis.axhline(0, color=GREY, linewidth=0.6)
        axis.set_ylim(-1.05, 1.05)
        drawing.label(axis, title=f"{one.name}, {title}", x="hidden unit")
    axes[0].set_ylabel("cosine")
    if not one.fitted:
        return figure
    v, y, network = (_array(record, one, what)[0] for what in ("hidden", "targets", "networks"))
    predictions = _array(record, one, "predictions")[0]
    for place, k in enumerate(columns.values()):
        axis = axes[3 + place]
        axis.scatter(network, predictions[k], s=3, color=drawing.COLOURS[0], linewidths=0, rasterized=True)
        axis.set_xlabel("trained network")
        axis = axes[6 + place]
        axis.scatter(v, y, s=3, color="#cccccc", linewidths=0, label="target", rasterized=True)
        axis.scatter(v, predictions[k], s=3, color=drawing.COLOURS[1], linewidths=0, label="machine", rasterized=True)
        axis.set_xlabel("v")
    axes[3].set_ylabel("kernel machine")
    axes[6].legend()
    return figure


def lags(record: Record) -> Any:
    """By how many epochs the loss's half-fall follows the alignment's half-rise: every seed, mean and interval."""
    rows: dict[str, Mapping[str, Any]] = {
        one.name: record.metrics[one.name]["half"] for one in TASKS if one.name in record.metrics
    }
    figure, (axis,) = drawing.canvas(width=6.0, height=0.8 + 0.34 * max(1, len(rows)))
    for place, half in enumerate(rows.values()):
        values = [value for value in numbers(half["lag"]) if np.isfinite(value)]
        axis.plot(values, [place] * len(values), "o", color=drawing.COLOURS[5], markersize=3, alpha=0.6)
        if values:
            told = interval(values)
            axis.plot([told["low"], told["high"]], [place, place], color=drawing.COLOURS[0], linewidth=2.5, alpha=0.8)
    axis.axvline(0, color=GREY, linewidth=0.8)
    axis.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("epochs from the alignment's half-rise to the loss's half-fall; silent to the right of 0")
    return figure

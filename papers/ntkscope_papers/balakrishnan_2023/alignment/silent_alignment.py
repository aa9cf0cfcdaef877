"""Balakrishnan (2023), Figures 8 to 19: does the tangent kernel align before the loss falls, and when do the weights turn?

One hidden ReLU layer on polynomials of a hidden direction, and on two classes of images. Width, rates and epochs, which the
text leaves open, are those of its public code; the kernel machine is ridge regression with its strength chosen on validation
points at every moment, where the text has a support vector regression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.alignment import claims
from ntkscope_papers.balakrishnan_2023.alignment.claims import numbers
from ntkscope_papers.balakrishnan_2023.alignment.path import Path, follow
from ntkscope_papers.balakrishnan_2023.alignment.summary import LEAST_FALL, LEAST_RISE, correlations, fits, summary
from ntkscope_papers.balakrishnan_2023.alignment.tasks import BY_AUTHORS, TASKS, Polynomial, Task
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.intervals import interval

GREY = "#999999"


@dataclass(frozen=True)
class SilentAlignment(Experiment):
    """Hidden directions, Figures 8–19: cosines, tangent machines, kernel alignment and loss on one axis of epochs.

    `moments` an epoch for `followed` epochs, then one up to `watched`; training ends after at most `epochs`.

    `points` of the training items make the kernels of every moment, `most_points` those of whole epochs. `strengths` of the
    ridge are multiples of the centred kernel's mean diagonal. `rates` of AdaDelta: the first is judged. `small`: the standard
    deviation of a small start's weights, times the root of the fan-in. `draws`: permutations of a test.
    `drawn`: the tasks that have figures of their own.
    """

    name = "silent-alignment"
    statements = claims_of(claims)
    free = ("seeds", "draws", "drawn")

    seeds: int = 10
    dimension: int = 100
    width: int = 512
    target: str = "raw"
    noise: float = 0.0
    train_items: int = 8000
    validation_items: int = 1000
    test_items: int = 1000
    batch: int = 32
    rates: tuple[float, ...] = (1.0, 0.1)
    epochs: int = 200
    patience: int = 50
    pictures: tuple[str, ...] = ("mnist", "cifar10")
    image_lr: float = 0.001
    small: float = 0.01
    moments: int = 10
    followed: int = 20
    watched: int = 40
    points: int = 2000
    most_points: int = 8000
    strengths: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
    draws: int = 9999
    drawn: tuple[str, ...] = tuple(one.name for one in TASKS)

    smoke = {
        **{"seeds": 3, "dimension": 8, "width": 16, "batch": 16, "epochs": 6, "patience": 5, "image_lr": 0.02},
        **{"train_items": 96, "validation_items": 32, "test_items": 32, "pictures": ("digits", "digits")},
        **{"moments": 3, "followed": 3, "watched": 5, "points": 48, "most_points": 96},
        **{"strengths": (1e-4, 1e-2, 1.0), "draws": 199, "drawn": ("d7", "mnist/small")},
    }

    @leg("{0.name}", over=lambda self: TASKS)
    def task(self, run: Run, one: Task) -> dict[str, Any]:
        """Networks of one task, stacked: what was measured of them, by seed; the series themselves as arrays."""
        path = follow(self, run, one)
        for what, values in _series(path).items():
            run.record.array(array_name(one, what), values)
        return summary(self, path)

    @leg("{0.name}", over=lambda self: BY_AUTHORS, optional=True)
    def task_by_authors(self, run: Run, one: Task) -> dict[str, Any]:
        return self.task(run, one)

    @figure
    def paths(self, record: Record) -> dict[str, Figure]:
        """For every task that is to be drawn its path and, for polynomials, its figures.

        A record that was gathered from others may lack their arrays; figures of those tasks are left out.
        """
        found = {}
        for one in (*TASKS, *BY_AUTHORS):
            needed = ("times", "predictions") if one.fitted else ("times",)
            there = one.name in record.metrics and all(record.arrays.kept(array_name(one, what)) for what in needed)
            if there and (one.name in self.drawn or one in BY_AUTHORS):
                name = one.name.replace("/", "-")
                found[f"path-{name}"] = path_of(record, one, self.followed)
                if isinstance(one, Polynomial):
                    found[f"figures-{name}"] = moments(record, one)
        return found

    @figure
    def silence(self, record: Record) -> Figure:
        """By how many epochs the loss's half-fall follows the alignment's half-rise: every seed, mean and interval."""
        rows: dict[str, Mapping[str, Any]] = {
            one.name: record.metrics[one.name]["half"] for one in TASKS if one.name in record.metrics
        }
        drawn, (axis,) = drawing.canvas(width=6.0, height=0.8 + 0.34 * max(1, len(rows)))
        for place, half in enumerate(rows.values()):
            values = [value for value in numbers(half["lag"]) if np.isfinite(value)]
            axis.plot(values, [place] * len(values), "o", color=drawing.COLOURS[5], markersize=3, alpha=0.6)
            if values:
                told, style = interval(values), {"color": drawing.COLOURS[0], "linewidth": 2.5, "alpha": 0.8}
                axis.plot([told["low"], told["high"]], [place, place], **style)
        axis.axvline(0, color=GREY, linewidth=0.8)
        axis.set_yticks(range(len(rows)), list(rows), fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel("epochs from the alignment's half-rise to the loss's half-fall; silent to the right of 0")
        return drawn


def array_name(one: Task, what: str) -> str:
    """Of an array in the record."""
    return f"{what}-{one.name.replace('/', '-')}"


def _series(path: Path) -> dict[str, np.ndarray]:
    """Loss and alignment (of members at moments), cosines and predictions of a path, for figures."""
    found = {
        "times": path.times,
        "series": np.stack([path.losses, path.alignments]),
        "networks": path.finals[: path.seeds].astype(np.float32),
        "targets": path.targets.astype(np.float32),
    }
    if path.cosines is not None:
        found["cosines"] = path.cosines.astype(np.float16)
    if path.hidden is not None:
        found["hidden"] = path.hidden.astype(np.float32)
    if path.predictions is not None and path.strengths is not None:
        found |= {"predictions": path.predictions.astype(np.float32), "strengths": path.strengths}
    return found


def _array(record: Record, one: Task, what: str) -> np.ndarray:
    return np.asarray(record.arrays[array_name(one, what)], dtype=np.float64)


def _seeds(axis: Any, times: np.ndarray, rows: np.ndarray, colour: int, label: str) -> None:
    """Every seed thin, their mean thick."""
    shade = drawing.COLOURS[colour]
    for row in rows:
        axis.plot(times, row, color=shade, linewidth=0.5, alpha=0.35)
    axis.plot(times, rows.mean(0), color=shade, linewidth=1.8, label=label)


def path_of(record: Record, one: Task, followed: int) -> Figure:
    """Cosines; the tangent machine's correlation and fit; alignment and loss, each as a share of the way it went."""
    times = _array(record, one, "times")
    close = times <= followed
    losses, alignments = _array(record, one, "series")
    row = record.metrics[one.name]
    S = len(row["network"]["fit"])
    panels = [isinstance(one, Polynomial), one.fitted, True]
    drawn, axes = drawing.canvas(1, sum(panels), width=4.4, height=3.2)
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
    if not axis.lines:
        axis.set_title("no seed's alignment rises, or loss falls, enough to be dated", fontsize=8)
    axis.set_ylim(-0.6, 1.05)
    axis.axhline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    axis.set_ylabel("share of the way")
    for axis in axes:
        axis.set_xlabel("epoch")
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    drawn.suptitle(one.name, fontsize=10)
    return drawn


def _share(rows: np.ndarray, least: float | np.ndarray) -> np.ndarray:
    """From 0 at the start to 1 at the largest value, for those rows that rise by `least`: smaller ones are not dated.

    >>> _share(np.array([[1.0, 2.0, 3.0], [1.0, 1.001, -5.0]]), 0.1).tolist()
    [[0.0, 0.5, 1.0]]
    """
    rise = rows.max(1, keepdims=True) - rows[:, :1]
    dated = ((rise >= least) & (rise > 0))[:, 0]
    return (rows[dated] - rows[dated, :1]) / rise[dated]


def moments(record: Record, one: Polynomial) -> Figure:
    """Of the first seed: cosines of all units, machine against network, machine over v; at the start, one epoch, the end."""
    times = _array(record, one, "times")
    shown = int(np.argmin(np.abs(times - one.shown)))
    columns = {
        "before training": 0,
        f"after {times[shown]:g} epoch{'' if times[shown] == 1 else 's'}": shown,
        "trained": -1,
    }
    drawn, axes = drawing.canvas(3 if one.fitted else 1, 3, width=3.4, height=2.6)
    cosines = _array(record, one, "cosines")[0]
    for axis, (title, k) in zip(axes, columns.items()):
        axis.scatter(range(cosines.shape[1]), cosines[k], s=3, color=drawing.COLOURS[0], linewidths=0)
        axis.axhline(0, color=GREY, linewidth=0.6)
        axis.set_ylim(-1.05, 1.05)
        drawing.label(axis, title=f"{one.name}, {title}", x="hidden unit")
    axes[0].set_ylabel("cosine")
    if not one.fitted:
        return drawn
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
    return drawn

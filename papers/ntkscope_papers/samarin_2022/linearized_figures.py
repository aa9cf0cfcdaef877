"""Figures of `linearized-lenet`: accuracy and gap by width beside the published gaps, statistics of outputs over training."""

from __future__ import annotations

from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.results import summary
from ntkscope_papers.samarin_2022 import linearized_readings as read
from ntkscope_papers.samarin_2022.linearized_claims import GAPS, TITLES


def draw(record: Record) -> dict[str, Any]:
    """All figures, with what the record has."""
    return {"accuracy": _accuracy(record), "gaps": _gaps(record), "training": _training(record)}


def _accuracy(record: Record) -> Any:
    figure, axes = drawing.canvas(1, 3, width=4.4)
    for axis, task in zip(axes, read.TASKS):
        widths = read.widths(record, task)
        for i, (kind, label) in enumerate((("network", "LeNet"), ("linear", "linearisation"))):
            for where, style in (("test", "o-"), ("train", ":")):
                found = [summary(read.accuracies(record, task, w, kind, where)) for w in widths]
                means, errors = [one["mean"] for one in found], [one["sem"] for one in found]
                name = label if where == "test" else None
                axis.errorbar(widths, means, yerr=errors, fmt=style, color=drawing.COLOURS[i], markersize=4, label=name)
        drawing.width_factors(axis, widths)
        drawing.label(axis, title=TITLES[task], y="accuracy, percent (training: dotted)")
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure


def _gaps(record: Record) -> Any:
    figure, (axis,) = drawing.canvas(width=5.6)
    for i, task in enumerate(read.TASKS):
        widths = read.widths(record, task)
        found = [read.gaps(record, task, w) for w in widths]
        means, errors = [one["mean"] for one in found], [one["sem"] for one in found]
        drawing.line_with_errors(axis, widths, means, errors, i, TITLES[task])
        published = {int(name[1:]): value for name, value in GAPS[task].items()}
        axis.plot(list(published), list(published.values()), "x--", color=drawing.COLOURS[i], alpha=0.6)
    every = {w for task in read.TASKS for w in (*read.widths(record, task), *(int(name[1:]) for name in GAPS[task]))}
    drawing.width_factors(axis, sorted(every))
    drawing.label(axis, y="LeNet minus linearisation, test points\n(published: crosses)", legend=True)
    return figure


def _training(record: Record) -> Any:
    figure, axes = drawing.canvas(1, 2, width=5.2)
    for axis, task in zip(axes, ("mnist", "shifted")):
        for i, width in enumerate(read.widths(record, task)):
            for kind, style in (("network", "o-"), ("linear", "s--")):
                curve = record.metrics[f"train/{task}/x{width}/{kind}"]["curve"]
                at = [float(epoch) for epoch in curve]
                values = [curve[epoch][0]["test"] for epoch in curve]
                shown = [float("nan") if value is None else value for value in values]
                colour = drawing.COLOURS[i % len(drawing.COLOURS)]
                axis.plot(
                    at, shown, style, color=colour, markersize=3, label=f"x{width}" if kind == "network" else None
                )
        axis.set_xscale("symlog", linthresh=1)
        drawing.label(axis, title=TITLES[task], x="epoch", y="test accuracy, percent (linearisation: dashed)")
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure

"""Figures of `binary-mnist`: the tables beside the published ones, accuracy over ridges, the dip at p = n."""

from __future__ import annotations

from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.results import under
from ntkscope_papers.samarin_2022 import binary_readings as read
from ntkscope_papers.samarin_2022.binary_claims import TABLES, TASK
from ntkscope_papers.samarin_2022.tangent_ridge import interpolating


def draw(record: Record) -> dict[str, Any]:
    """All figures that the record has results for."""
    return {"tables": _tables(record), "ridges": _ridges(record), "threshold": _threshold(record)}


def _tables(record: Record) -> Any:
    figure, axes = drawing.canvas(1, 2, width=5.6)
    for axis, (table, task) in zip(axes, TASK.items()):
        rows = {
            "solver": read.solver(record, task, "test"),
            "linearisation, SGD": read.descent(record, task, "linear", "test"),
            "LeNet, SGD": read.descent(record, task, "network", "test"),
        }
        for i, ((label, row), model) in enumerate(zip(rows.items(), ("solver", "lin", "lenet"))):
            published = TABLES[table][model]["test"]
            colour = drawing.COLOURS[i]
            axis.plot(
                [float(w[1:]) for w in published], [100 - v for v in published.values()], "--", color=colour, alpha=0.6
            )
            axis.plot(
                [float(w[1:]) for w in row],
                [100 - v for v in row.values()],
                "o-",
                color=colour,
                label=label,
                markersize=4,
            )
        drawing.width_factors(axis, [int(width[1:]) for width in TABLES[table]["lin"]["test"]])
        drawing.plain_log(axis)
        drawing.label(
            axis, title=f"0 against the rest, {task}", y="test error, percent (published: dashed)", legend=True
        )
    return figure


def _ridges(record: Record) -> Any:
    figure, axes = drawing.canvas(1, 2, width=5.6)
    for axis, task in zip(axes, TASK.values()):
        for i, width in enumerate(read.widths_of(record, f"solver/{task}/")):
            run = read.solver_runs(record, task, width)[0]
            for where, style in (("test", "o-"), ("train", ":")):
                curve = read.ridge_curve(run, where)
                at = [ridge for ridge in curve if ridge > 0]
                colour = drawing.COLOURS[i % len(drawing.COLOURS)]
                label = width if where == "test" else None
                axis.plot(at, [curve[ridge] for ridge in at], style, color=colour, markersize=3, label=label)
        drawing.label(
            axis, title=task, x="ridge / mean diagonal of the kernel", y="accuracy, percent (training: dotted)", log="x"
        )
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure


def _threshold(record: Record) -> Any:
    figure, (axis,) = drawing.canvas(width=5.6)
    for i, task in enumerate(TASK.values()):
        runs = [*under(record, f"fraction/{task}/").values(), *under(record, f"solver/{task}/").values()]
        points = sorted((run["parameters"] / run["rows"], interpolating(run)[1]["test"][0]) for run in runs)
        axis.plot(*zip(*points), "o-" if points else "o", color=drawing.COLOURS[i], label=task, markersize=4)
    axis.axvline(1, color="#999999", linewidth=0.8, linestyle="--")
    axis.set_xscale("log")
    axis.set_xticks([0.5, 1, 2, 5, 10, 100, 500], ["0.5", "1", "2", "5", "10", "100", "500"])
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    drawing.label(axis, x="parameters / training images", y="test accuracy of the solver, percent", legend=True)
    return figure

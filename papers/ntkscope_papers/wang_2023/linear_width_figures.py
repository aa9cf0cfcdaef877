"""Figures of `linear-width`: the table beside the published one, spectra and Q-Q plots, spectra through training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.results import summary
from ntkscope_papers.wang_2023 import linear_width_readings as read
from ntkscope_papers.wang_2023.linear_width_published import CLASSES, TABLE_8

NAMES = {"weights": "WᵀW/d", "ck": "CK", "ntk": "NTK"}
WORDS = {
    "case1": "GD",
    "case2": "SGD, small step",
    "case3": "SGD, large step",
    "case4": "Adam",
    "lazy": "lazy (Eq. 78)",
}


def draw(record: Record) -> dict[str, Any]:
    """All figures that the record has results for."""
    return {"table8": _table(record), "spectra": _spectra(record), "training": _training(record)}


def _table(record: Record) -> Any:
    figure, axes = drawing.canvas(1, 2, width=5.6)
    cases = [
        case for case in read.CASES if read.key_of(case) in record.metrics and read.members(record, read.key_of(case))
    ]
    ridge = record.metrics.get("baselines", {}).get("members", [])
    for axis, name in zip(axes, ("r2", "test_error")):
        found = [summary(one[name] for one in read.members(record, read.key_of(case))) for case in cases]
        labels = [WORDS[case] for case in cases]
        values: list[float | None] = [one["mean"] for one in found]
        errors = [one["sem"] for one in found]
        published: list[float | None] = [TABLE_8[case][name] for case in cases]
        if ridge:
            labels, errors = [*labels, "ridge on x"], [*errors, 0.0]
            values, published = [*values, summary(one["ridge"][name] for one in ridge)["mean"]], [*published, None]
        label = "R²" if name == "r2" else "test error"
        drawing.compare_bars(axis, labels, {"measured": (values, errors), "published": (published, None)}, label=label)
    return figure


def _moments(record: Record, case: str) -> Sequence[Any]:
    found = record.metrics.get(read.key_of(case))
    return [] if found is None else found["moments"]


def _spectra(record: Record) -> Any:
    """Q-Q plots, the trained spectrum against the initial one, for each matrix and case."""
    figure, axes = drawing.canvas(1, len(NAMES), width=4.4)
    for axis, (kind, name) in zip(axes, NAMES.items()):
        for i, case in enumerate(CLASSES):
            rows = _moments(record, case)
            if rows:
                first, last = rows[0][kind]["quantiles"], rows[-1][kind]["quantiles"]
                axis.plot(first, last, "o-", markersize=2, linewidth=0.8, color=drawing.COLOURS[i], label=WORDS[case])
        low, high = axis.get_xlim()
        axis.plot([low, high], [low, high], "--", color="#999999", linewidth=0.8)
        axis.set_yscale("symlog", linthresh=10)
        drawing.label(axis, x=f"quantiles of {name} at the start", y="after training")
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure


def _training(record: Record) -> Any:
    """The largest eigenvalues of WᵀW/d over training, a panel for each case."""
    figure, axes = drawing.canvas(1, len(CLASSES), width=3.6)
    for axis, case in zip(axes, CLASSES):
        rows = _moments(record, case)
        if rows:
            steps = [max(row["step"], 0.5) for row in rows]
            for place in range(5):
                values = [row["weights"]["top"][place] for row in rows]
                axis.plot(steps, values, "o-", markersize=2.5, linewidth=0.9, color=drawing.COLOURS[place])
            axis.set_xscale("log")
        drawing.label(axis, title=WORDS[case], x="step (the start at 0.5)", y="first five eigenvalues of WᵀW/d")
    return figure

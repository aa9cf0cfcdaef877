"""Figures of Table 1's two-class rows: τ by training and measure, τ by ridge, log-odds of the first networks."""

from __future__ import annotations

from typing import Any

from ntkscope.core import Record
from ntkscope_papers.engel_2023.small_claims import OURS, ROWS, as_published, networks
from ntkscope_papers.engel_2023.small_training import READINGS
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.results import summary

MANY = 100  # more networks than any record has


def draw(record: Record) -> dict[str, Any]:
    """τ of every reading beside the published one; τ against the ridge; log-odds of the first networks."""
    rows = list(record.config["rows"])
    figure, axes = drawing.canvas(1, 2, width=5.2)
    series: dict[str, Any] = {}
    for reading in READINGS:
        found = {row: networks(record, row, reading, MANY) for row in rows}
        if not any(found.values()):
            continue
        means = [summary(one["tau"] for one in found[row]) if found[row] else None for row in rows]
        series[f"{reading}, correct class"] = _bars(means)
        measured = [as_published(found[row]) for row in rows]
        if any(measured):
            shown = [None if one is None else {"mean": one["tau"][0], "sem": one["tau"][1]} for one in measured]
            series[f"{reading}, as published"] = _bars(shown)
        _ridges(axes[1], rows, found, reading)
    series["published"] = ([ROWS[row][0][4] for row in rows], None)
    drawing.compare_bars(axes[0], rows, series, label="Kendall τ")
    drawing.label(axes[1], x="ridge strength", y="Kendall τ of the correct class, first network", log="x")
    if axes[1].lines:
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figures = {"table1": figure}
    drawn = [(row, reading) for reading in READINGS for row in rows if f"log-odds-{row}-{reading}" in record.arrays]
    first = [pair for pair in drawn if pair[1] == OURS] or drawn
    if first:
        scatter, panels = drawing.canvas(1, len(first), width=3.4, height=3.2)
        for axis, (row, reading) in zip(panels, first):
            odds = record.arrays[f"log-odds-{row}-{reading}"]
            drawing.scatter_log_odds(axis, odds[0], odds[1], f"{row}, {reading}")
        figures["log-odds"] = scatter
    return figures


def _bars(means: list[Any]) -> tuple[list[float | None], list[float]]:
    return [None if m is None else m["mean"] for m in means], [0.0 if m is None else m["sem"] for m in means]


def _ridges(axis: Any, rows: list[str], found: dict[str, Any], reading: str) -> None:
    for row in rows:
        if found[row] and "other ridges" in found[row][0]:
            first = found[row][0]
            ridges = {**first["other ridges"], f"{first['alpha']:g}": first}
            line = sorted((float(k), v["tau"]) for k, v in ridges.items())
            style = {"softmax": "-", "sigmoid": "--"}.get(reading, ":")
            colour = drawing.COLOURS[list(ROWS).index(row)]
            axis.plot(*zip(*line), style, marker="o", markersize=3, color=colour, label=f"{row}, {reading}")

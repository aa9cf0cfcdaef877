"""Logistic regression: figures from a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.qadeer_2023.logistic_claims import KINKED, NARROW, SMOOTH, evolution
from ntkscope_papers.qadeer_2023.networks import Cell, joined

NAMES = {"network": "network", "ntk": "NTK", "ck": "CK"}
COLOURS = dict(zip(NAMES, drawing.COLOURS))
FIGURES = {"figure-8-tanh-128": SMOOTH, "figure-9-tanh-64": NARROW, "figure-10-relu-128": KINKED}
MEASURES = {"loss": "summed test cross-entropy", "accuracy": "test accuracy"}


def draw(record: Record) -> dict[str, Any]:
    """Every run (Figures 8, 9, 10), through training (11), and against the ridge."""
    config = SimpleNamespace(**record.config)
    figures = {name: _runs(config, record, network) for name, network in FIGURES.items()}
    figures["figure-11-evolution"] = _evolution(config, record)
    figures["ridges"] = _ridges(config, record)
    return figures


def _panels(config: Any) -> tuple[Any, list[tuple[Any, str, str]]]:
    """A figure with one panel for each boundary and measure."""
    figure, axes = drawing.canvas(2, len(config.boundaries), width=4.2, height=3.0)
    which = [(boundary, measure) for measure in MEASURES for boundary in config.boundaries]
    return figure, [(axis, *names) for axis, names in zip(axes, which)]


def _finish(axis: Any, title: str, xlabel: str, measure: str, *, drawn: bool) -> None:
    drawing.label(axis, title=title, x=xlabel, y=MEASURES[measure])
    if drawn:
        axis.legend(framealpha=0.85, edgecolor="none")
        if measure == "loss":
            axis.set_yscale("log")
    else:
        axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color="#6b7280")


def _runs(config: Any, record: Record, network: str) -> Any:
    figure, panels = _panels(config)
    for axis, boundary, measure in panels:
        rows = joined(record, f"runs/{boundary}/{network}")
        for name, label in NAMES.items() if rows else ():
            axis.plot(rows[f"{name} {measure}"], "o", markersize=2.5, color=COLOURS[name], label=label)
        _finish(axis, f"{boundary}, {network}", "network", measure, drawn=bool(rows))
    return figure


def _evolution(config: Any, record: Record) -> Any:
    figure, panels = _panels(config)
    for axis, boundary, measure in panels:
        found = evolution(config, record, Cell(boundary, SMOOTH))
        for name, label in NAMES.items() if found else ():
            values = found[f"{name} {measure}"]
            axis.plot(config.checkpoints, values, "o-", markersize=3, linewidth=1.2, color=COLOURS[name], label=label)
        _finish(axis, f"{boundary}, {SMOOTH}", "epoch", measure, drawn=bool(found))
    return figure


def _ridges(config: Any, record: Record) -> Any:
    """Medians over the watched networks, tanh solid and ReLU dashed."""
    figure, panels = _panels(config)
    for axis, boundary, measure in panels:
        drawn = False
        for network, style in ((SMOOTH, "o-"), (KINKED, "s--")):
            rows = joined(record, f"ridges/{boundary}/{network}")
            for name in ("ntk", "ck") if rows else ():
                middle = np.median(np.asarray(rows[f"{name} {measure}"]), axis=0)
                label = f"{NAMES[name]}, {network}"
                axis.plot(config.ridges, middle, style, markersize=3, color=COLOURS[name], label=label)
            drawn |= bool(rows)
        axis.set_xscale("log")
        _finish(axis, boundary, "ridge", measure, drawn=drawn)
    return figure

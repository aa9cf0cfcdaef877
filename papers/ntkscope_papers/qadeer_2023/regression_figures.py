"""Function regression: figures from a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.qadeer_2023.networks import Cell, joined
from ntkscope_papers.qadeer_2023.regression_claims import KINKED, SMOOTH, WIDE, evolution

NAMES = {"network": "network", "ntk": "NTK", "ck": "CK", "ckj": "CKJ"}
COLOURS = dict(zip(NAMES, drawing.COLOURS))
FIGURES = {"figure-3-tanh-128": SMOOTH, "figure-5-tanh-256": WIDE, "figure-6-relu-128": KINKED}


def draw(record: Record) -> dict[str, Any]:
    """Errors of every run (Figures 3, 5, 6), through training (4, 7), and against the cut-off of the pseudo-inverse."""
    config = SimpleNamespace(**record.config)
    config.moments = tuple(range(0, config.steps + 1, config.every))
    figures = {name: _runs(config, record, network) for name, network in FIGURES.items()}
    figures["figure-4-evolution-tanh"] = _evolution(config, record, SMOOTH)
    figures["figure-7-evolution-relu"] = _evolution(config, record, KINKED)
    figures["cut-offs"] = _cutoffs(config, record)
    return figures


def _panels(config: Any) -> tuple[Any, list[Any]]:
    return drawing.canvas(1, len(config.targets), width=3.8, height=3.2)


def _finish(axis: Any, title: str, xlabel: str, *, logs: bool) -> None:
    drawing.label(axis, title=title, x=xlabel, y="test error")
    if logs:
        axis.set_yscale("log")
        axis.legend(framealpha=0.85, edgecolor="none")
    else:
        axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color="#6b7280")


def _runs(config: Any, record: Record, network: str) -> Any:
    figure, axes = _panels(config)
    for axis, target in zip(axes, config.targets):
        rows = joined(record, f"errors/{target}/{network}")
        for name, label in NAMES.items() if rows else ():
            axis.plot(rows[name], "o", markersize=2.5, color=COLOURS[name], label=label)
        _finish(axis, f"{target}, {network}", "network", logs=bool(rows))
    return figure


def _evolution(config: Any, record: Record, network: str) -> Any:
    figure, axes = _panels(config)
    for axis, target in zip(axes, config.targets):
        found = evolution(config, record, Cell(target, network))
        for name, label in NAMES.items() if found else ():
            axis.plot(found["steps"], found[name], "o-", markersize=3, linewidth=1.2, color=COLOURS[name], label=label)
        _finish(axis, f"{target}, {network}", "epoch", logs=bool(found))
    return figure


def _cutoffs(config: Any, record: Record) -> Any:
    """Medians over the watched tanh networks; the default cut-off is dotted."""
    figure, axes = _panels(config)
    for axis, target in zip(axes, config.targets):
        rows = joined(record, f"cutoffs/{target}/{SMOOTH}")
        for name in ("ntk", "ck", "ckj") if rows else ():
            middle = np.median(np.asarray(rows[name]), axis=0)
            axis.plot(config.cutoffs, middle, "o-", markersize=3, linewidth=1.2, color=COLOURS[name], label=NAMES[name])
        if rows:
            own = np.median(joined(record, f"errors/{target}/{SMOOTH}")["network"])
            axis.axhline(own, color=COLOURS["network"], linewidth=1, linestyle="--", label="network")
            axis.axvline((config.intervals + 1) * np.finfo(float).eps, color="#999999", linewidth=1, linestyle=":")
            axis.set_xscale("log")
        _finish(axis, f"{target}, {SMOOTH}", "relative cut-off", logs=bool(rows))
    return figure

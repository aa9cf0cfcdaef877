"""Figures 6 and 7 of Balakrishnan (2023) from a record, and R² by degree and mode over seeds, in every reading."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.polynomials.mode_claims import MODES, Modes, needed, variants
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.intervals import R2, interval


def array_name(mode: str, degree: int) -> str:
    """Of the test predictions of seed 0: rows v, y, network."""
    return f"predictions-{mode}-{degree}"


def draw(record: Record) -> dict[str, Any]:
    """Scatter plots of one seed, and R² of all modes by degree."""
    config = SimpleNamespace(**record.config)
    found: dict[str, Any] = {}
    for name, degree in zip(("figure6", "figure7"), config.kernel_degrees):
        if all(array_name(mode, degree) in record.arrays for mode in MODES):
            found[name] = _scatter(record, degree)
    complete = [variant for variant in variants() if all(key in record.metrics for key in needed(*variant))]
    for target in config.targets if complete else ():
        found[f"modes-{target}"] = _by_degree(record, config, complete, target)
    if not found:
        figure, (axis,) = drawing.canvas()
        axis.set_title("no mode is trained yet")
        found["modes"] = figure
    return found


def _scatter(record: Record, degree: int) -> Any:
    figure, axes = drawing.canvas(2, 2, width=4.0, height=3.2)
    for k, (axis, mode) in enumerate(zip(axes, MODES)):
        v, y, predicted = record.arrays[array_name(mode, degree)]
        order = np.argsort(v)
        axis.plot(v[order], y[order], color="#999999", linewidth=1)
        axis.scatter(v, predicted, s=4, alpha=0.5, linewidths=0, color=drawing.COLOURS[k])
        axis.set_title(f"{mode}, degree {degree}, test items, one seed")
    return figure


def _by_degree(record: Record, config: Any, complete: list[tuple[str, str]], target: str) -> Any:
    figure, axes = drawing.canvas(1, len(complete), width=3.8)
    for axis, (freeze, state) in zip(axes, complete):
        modes = Modes(record, freeze, state, target)
        for k, mode in enumerate(MODES):
            told = [interval(modes.of(mode, degree), R2) for degree in config.degrees]
            errors = [one["mean"] - one["low"] for one in told]
            drawing.line_with_errors(axis, config.degrees, [one["mean"] for one in told], errors, k, mode)
        drawing.label(axis, title=f"{freeze} frozen, state {state}, {target}", x="degree")
        axis.set_xticks(config.degrees)
        axis.set_ylim(-0.3, 1.05)
    drawing.label(axes[0], y="R², test items", legend=True)
    return figure

"""Figures of `nfa-evolution`: one per input spectrum, rows for layers, columns for correlations and losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, SPECTRA
from ntkscope_papers.beaglehole_2024.feature_runs import Paths, key_of, paths_of
from ntkscope_papers.framework import drawing

NAMES = {"isotropic": "figure-2", "decay-1": "figure-7", "decay-2": "figure-8"}
TITLES = {
    "uncentred": "uncentred ρ",
    "centred": "centred ρ",
    "train": "training loss / maximum",
    "test": "test loss / maximum",
}


def draw(record: Record) -> dict[str, Any]:
    """Means over seeds, with bands of one standard error."""
    scales = record.config["scales"]
    there = [name for name in SPECTRA if any(key_of(name, scale) in record.metrics for scale in scales)]
    figures = {NAMES[name]: evolution(paths_of(scales, record, name)) for name in there}
    return figures or {"figure-2": drawing.canvas()[0]}


def evolution(paths: Paths) -> Any:
    figure, axes = drawing.canvas(2, 4, width=3.4, height=2.8)
    for row, layer in enumerate(LAYERS):
        for column, (kind, title) in enumerate(TITLES.items()):
            axis = axes[4 * row + column]
            if kind in ("train", "test"):
                losses = paths.rows[f"{kind} loss"]
                values = losses / losses.max(2, keepdims=True)
            else:
                values = paths.rows[f"{kind} {layer}"]
            lines(axis, paths, values)
            axis.set_ylim(0, 1.02)
            drawing.label(axis, title=f"{title}, {layer}" if column < 2 else title, x="step")
    axes[0].legend()
    return figure


def lines(axis: Any, paths: Paths, values: Float64[np.ndarray, "scales seeds moments"]) -> None:
    """One line per scale with a band of one standard error."""
    for i, scale in enumerate(paths.scales):
        mean = values[i].mean(0)
        error = values[i].std(0, ddof=1) / len(values[i]) ** 0.5 if len(values[i]) > 1 else np.zeros_like(mean)
        colour = drawing.COLOURS[i % len(drawing.COLOURS)]
        axis.plot(paths.steps, mean, color=colour, linewidth=1.2, label=f"s = {scale:g}")
        axis.fill_between(paths.steps, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)

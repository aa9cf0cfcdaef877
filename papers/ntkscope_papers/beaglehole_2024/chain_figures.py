"""Figures of `chain-monomial`: the four matrices of Figure 1, and the correlations with their control."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import drawing

TITLES = ("EGOP of the target", "NFM  WᵀW", "AGOP  WᵀKW", "WᵀQW, random eigenvectors")
WORDS = {"variance": "s a variance", "deviation": "s a standard deviation"}


def draw(record: Record) -> dict[str, Any]:
    """Figure 1 for the first seed of the first reading there is, and every seed's ρ beside its control."""
    figures = {}
    names = [reading for reading in WORDS if f"matrices-{reading}" in record.arrays]
    if names:
        figures["matrices"] = matrices(record, names[0])
    figures["correlations"] = correlations(record)
    return figures


def matrices(record: Record, reading: str) -> Any:
    figure, axes = drawing.canvas(1, 4, width=3.2, height=3.2)
    for axis, matrix, title in zip(axes, np.asarray(record.arrays[f"matrices-{reading}"]), TITLES):
        largest = float(np.abs(matrix).max()) or 1.0
        axis.imshow(matrix / largest, cmap="RdBu_r", vmin=-1, vmax=1)
        axis.set_title(title)
        axis.set_xticks([])
        axis.set_yticks([])
    return figure


def correlations(record: Record) -> Any:
    figure, axes = drawing.canvas(1, 2, width=4.2)
    for axis, (reading, title) in zip(axes, WORDS.items()):
        found = record.metrics.get(f"trained/{reading}", {}).get("members", ())
        for i, member in enumerate(found):
            layer = member["layers"]["layer1"]
            low, high = layer["quantiles"]["0.025"], layer["quantiles"]["0.975"]
            axis.plot([i, i], [low, high], color=drawing.COLOURS[1], linewidth=3, alpha=0.5)
            axis.plot(i, layer["control"]["mean"], "o", color=drawing.COLOURS[1], markersize=4)
            axis.plot(i, layer["rho"], "o", color=drawing.COLOURS[0], markersize=4)
        axis.set_ylim(0, 1.02)
        drawing.label(axis, title=f"{title}: ρ (blue), 95 % of random Q (orange)", x="seed", y="correlation, layer 1")
    return figure

"""Figures of `nfa-centerings`: Figure 4's ratio, and Figure 5's correlation for both spectra."""

from __future__ import annotations

from typing import Any

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.evolution_figures import lines
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS
from ntkscope_papers.beaglehole_2024.feature_runs import key_of, paths_of
from ntkscope_papers.framework import drawing

SHOWN = {
    "figure-4": ("isotropic", "ratio", "double-centred / centred term"),
    "figure-5a": ("isotropic", "tangents", "ρ(W₀ᵀW₀, W₀ᵀK̄W₀), isotropic"),
    "figure-5b": ("decay-2", "tangents", "ρ(W₀ᵀW₀, W₀ᵀK̄W₀), spectrum 1/(1+k²)"),
}


def draw(record: Record) -> dict[str, Any]:
    """Means over seeds, with bands of one standard error; both layers."""
    scales, figures = record.config["scales"], {}
    for name, (spectrum, kind, title) in SHOWN.items():
        figure, axes = drawing.canvas(1, 2, width=4.2, height=3.2)
        if any(key_of(spectrum, scale) in record.metrics for scale in scales):
            paths = paths_of(scales, record, spectrum)
            for axis, layer in zip(axes, LAYERS):
                lines(axis, paths, paths.rows[f"{kind} {layer}"])
                drawing.label(axis, title=f"{title}, {layer}", x="step")
            axes[0].legend()
        figures[name] = figure
    return figures

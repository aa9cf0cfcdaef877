"""Figures of `learning-rate-transition`: Figure 20 b to d, and one step beside its theory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.wang_2023.transition_claims import edge_of, runs_of

NAMES = {"weights": "|β·u₁|, W", "ck": "|y·v₁|/‖y‖, CK", "ntk": "|y·v₁|/‖y‖, NTK"}


def draw(record: Record) -> dict[str, Any]:
    """All figures that the record has results for."""
    return {"transition": _transition(record), "one-step": _one_step(record)}


def _transition(record: Record) -> Any:
    figure, axes = drawing.canvas(1, 3, width=4.4)
    runs = runs_of(record) if "rates" in record.metrics else []
    rates = [one["rate"] for one in runs]
    config = SimpleNamespace(**record.config)
    axes[0].plot(rates, [one["top"]["weights"][0] for one in runs], "o", markersize=3, color=drawing.COLOURS[0])
    axes[0].axhline(edge_of(config), color="black", linewidth=0.8)
    axes[0].set_ylabel("λ₁ of WᵀW/d; Marchenko–Pastur edge")
    axes[1].plot(rates, [one["top"]["ck"][0] for one in runs], "o", markersize=3, color=drawing.COLOURS[1])
    for one in record.metrics.get("start", {}).get("runs", ()):
        axes[1].axhline(one["top"]["ck"][0], color="black", linewidth=0.8)
    axes[1].set_ylabel("λ₁ of the CK; at the start")
    for i, (kind, name) in enumerate(NAMES.items()):
        axes[2].plot(
            rates, [one["alignment"][kind] for one in runs], "o", markersize=3, color=drawing.COLOURS[i], label=name
        )
    drawing.label(axes[2], y="alignment", legend=True)
    for axis in axes:
        axis.set_xlabel("step of SGD, squared error without ½")
    return figure


def _one_step(record: Record) -> Any:
    figure, axes = drawing.canvas(1, 2, width=5.6)
    for i, (key, word) in enumerate((("one-step/without", "f₀ = 0"), ("one-step/with", "f₀ kept"))):
        found = sorted(record.metrics.get(key, {}).get("runs", ()), key=lambda one: one["rate"])
        rates, colour = [one["rate"] for one in found], drawing.COLOURS[i]
        for axis, name in zip(axes, ("value", "alignment")):
            axis.plot(rates, [one[name] for one in found], "o", markersize=4, color=colour, label=f"{word}, measured")
            axis.plot(
                rates, [one["theory"][name] for one in found], "-", linewidth=1, color=colour, label=f"{word}, theory"
            )
            if key.endswith("/with"):
                naive = [one["naive"][name] for one in found]
                axis.plot(rates, naive, "--", linewidth=1, color=colour, label="f₀ as if independent of W")
    for axis, label in zip(axes, ("λ₁ of W₁ᵀW₁/d", "|β·u₁|")):
        drawing.label(axis, x="size of the step, Eq. 74's loss", y=label)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure

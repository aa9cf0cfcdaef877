"""Beaglehole, Mitliagkas & Agarwala, Props 3, 4 and 10 and Eq. 4 to 28: feature matrices at the start of training."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.early_averages import Averages
from ntkscope_papers.beaglehole_2024.early_claims import CLAIMS
from ntkscope_papers.beaglehole_2024.early_identities import Identities
from ntkscope_papers.framework import drawing, figure


@dataclass(frozen=True)
class EarlyTimeTheory(Identities, Averages):
    """Beaglehole et al., Props 3, 4, 10 and Eq. 4-28: second derivatives of the feature matrices, free probability, errata."""

    name = "early-time"
    statements = CLAIMS
    free = ("trials", "networks", "rotations", "formula_draws")

    smoke = {
        "trials": 12,
        "draws": 4000,
        "rotations": 16,
        "rotated": 80,
        "formula_draws": 2,
        "dimension": 120,
        "networks": 10,
        "width": 96,
        "sizes": (16, 64),
    }

    @figure
    def drawn(self, record: Record) -> dict[str, Figure]:
        """Covariance over mean term by width; the spread over networks by size; Eq. 28 over the trace it stands for."""
        if not {"wide limit", "self-averaging", "free formulas"} <= set(record.metrics):
            return {}
        drawn, axes = drawing.canvas(1, 3, width=3.9)
        wide = record.metrics["wide limit"]
        widths = wide["widths"]
        for i, name in enumerate(("numerator", "first", "second")):
            label = "numerator" if name == "numerator" else f"{name} denominator"
            axes[0].loglog(widths, wide[name][: len(widths)], "o-", color=drawing.COLOURS[i], markersize=3, label=label)
        drawing.power_law(axes[0], widths, wide["numerator"][0], -1, "order 1/k")
        drawing.label(axes[0], x="width k", y="covariance over mean term, Eq. 5")
        spread = record.metrics["self-averaging"]
        for i, name in enumerate(("mean rho", "ratio of means", "free prediction")):
            errors = spread["spread of rho"] if name == "mean rho" else [0.0] * len(spread["sizes"])
            drawing.line_with_errors(axes[1], spread["sizes"], spread[name], errors, i, name.replace("rho", "ρ"))
        axes[1].set_xscale("log")
        for axis, ticks in ((axes[0], widths), (axes[1], spread["sizes"])):
            axis.set_xticks(list(ticks), [str(tick) for tick in ticks])
            axis.minorticks_off()
        drawing.label(axes[1], x="n = d = k", y="ρ(ẆᵀẆ, ẆᵀKẆ), spread over networks")
        found = record.metrics["free formulas"]
        names = ("Eq. 20", "Eq. 22", "Eq. 28", "Eq. 28 as printed")
        bars = {key: ([found[key][name] for name in names], None) for key in ("k = d", "k = 2d")}
        drawing.compare_bars(axes[2], names, bars, label="formula over trace")
        axes[2].axhline(1, color="#999999", linewidth=0.8)
        for axis in axes[:2]:
            axis.legend()
        return {"early-time": drawn}

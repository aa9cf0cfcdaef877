"""Beaglehole, Mitliagkas & Agarwala, Props 3, 4 and 10 and Eq. 4 to 28: feature matrices at the start of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024 import early_averages as averages
from ntkscope_papers.beaglehole_2024 import early_identities as identities
from ntkscope_papers.beaglehole_2024.early_claims import CLAIMS
from ntkscope_papers.framework import Experiment, Run, drawing, figure, leg


@dataclass(frozen=True)
class EarlyTimeTheory(Experiment):
    """Beaglehole et al., Props 3, 4, 10 and Eq. 4-28: second derivatives of the feature matrices, free probability, errata.

    `trials`: random networks and matrices for identities. `draws`: initialisations for means. `rotations` of matrices with
    `rotated` rows, `formula_draws` words of matrices with `dimension` rows. `networks` of `width` for moments of R, and for the
    spread over networks of each size in `sizes`.
    """

    name = "early-time"
    statements = CLAIMS
    free = ("trials", "networks", "rotations", "formula_draws")

    trials: int = 60
    draws: int = 200_000
    rotations: int = 48
    rotated: int = 400
    formula_draws: int = 8
    dimension: int = 800
    networks: int = 30
    width: int = 1024
    sizes: tuple[int, ...] = (64, 256, 1024)

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

    @leg("{}", over=lambda self: identities.IDENTITIES)
    def identity(self, run: Run, name: str) -> dict[str, Any]:
        return identities.IDENTITIES[name](self.trials, run.seed)

    @leg("alternating words")
    def alternating_words(self, run: Run) -> dict[str, Any]:
        return averages.alternating_words(self.rotations, self.rotated, run.seed)

    @leg("free formulas")
    def free_formulas(self, run: Run) -> dict[str, Any]:
        return averages.free_formulas(self.formula_draws, self.dimension, run.seed)

    @leg("moments of R")
    def moments_of_r(self, run: Run) -> dict[str, Any]:
        return averages.moments_of_r(self.networks, self.width, run.seed)

    @leg("{}", over=lambda self: averages.MEANS)
    def mean(self, run: Run, name: str) -> dict[str, Any]:
        return averages.MEANS[name](self.draws, run.seed)

    @leg("wide limit")
    def wide_limit(self, run: Run) -> dict[str, Any]:
        return averages.wide_limit(run.seed)

    @leg("self-averaging")
    def self_averaging(self, run: Run) -> dict[str, Any]:
        return averages.self_averaging(self.networks, self.sizes, run.seed)

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

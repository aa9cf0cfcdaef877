"""Qadeer et al., Eq. 8 to 64: norms, kernel forms, lemmas and their errata, checked on random instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.qadeer_2023 import theory_claims
from ntkscope_papers.qadeer_2023 import theory_grids as grids
from ntkscope_papers.shared import theory as kernels

MEASUREMENTS: dict[str, Callable[[int, int], dict[str, Any]]] = {  # of the number of trials and the seed
    "weighted norms": grids.weighted_norms,
    "trapezoid order": grids.trapezoid_order,
    "coarse by fine": grids.coarse_by_fine,
    "monotone functions": grids.monotone_functions,
    "lemma 4.2": grids.lemma_4_2,
    "elementary": grids.elementary,
    "summed losses": grids.summed_losses,
    "lemma 5.1": grids.lemma_5_1,
    "lemma 5.2": grids.lemma_5_2,
    "matching": grids.matching,
    "softmax": kernels.softmax_difference,
    "conjugate kernel": kernels.conjugate_formula,
    "cost": kernels.cost,
    "kernel machines": kernels.kernel_machines,
    "ranges": kernels.ranges,
    "nested projections": kernels.nested_projections,
    "training order": kernels.training_order,
    "logistic forms": kernels.logistic_forms,
    "nested logistic": kernels.nested_logistic,
}


@dataclass(frozen=True)
class ConjugateTheory(Experiment):
    """Qadeer et al., Eq. 8-64: norms on nested grids, kernel and feature forms, Lemmas 4.1 to 5.2 and their errata.

    `trials`: random instances of the cheap checks; checks that fit machines or differentiate networks take a fraction.
    """

    name = "conjugate-theory"

    trials: int = 3000

    smoke = {"trials": 100}
    statements = claims_of(theory_claims)

    @leg("{}", over=lambda self: MEASUREMENTS)
    def check(self, run: Run, name: str) -> dict[str, Any]:
        return MEASUREMENTS[name](self.trials, run.seed)

    @figure
    def theory(self, record: Record) -> Figure:
        """The trapezoid norms' errors, Lemma 4.2 on long intervals, Lemma 5.1 where corners dominate their cells."""
        drawn, axes = drawing.canvas(1, 3, width=3.9)
        blue, orange, green = drawing.COLOURS[:3]
        found = record.metrics["trapezoid order"]
        axes[0].loglog(found["N"], found["exp(3x)"], "o-", color=blue, label="exp(3x)")
        axes[0].loglog(found["N, periodic"], found["exp(sin 2πx)"], "s-", color=orange, label="exp(sin 2πx)")
        drawing.power_law(axes[0], found["N"], found["exp(3x)"][0], -2, "order 2")
        drawing.label(axes[0], x="N", y="error of the norm", legend=True)
        tents = record.metrics["lemma 4.2"]["tents"]
        lengths = [float(length) for length in tents]
        for key, colour in (("over printed", orange), ("over corrected", blue)):
            axes[1].loglog(lengths, [one[key] for one in tents.values()], "o-", color=colour, label=key)
        axes[1].axhline(1, color="#999999", linewidth=0.8)
        drawing.label(axes[1], x="b - a", y="left side of Lemma 4.2 over its right side", legend=True)
        corner = record.metrics["lemma 5.1"]
        names = ("worst ratio", "one peak", "lattice of peaks")
        labels = ("random functions", *names[1:])
        axes[2].bar(labels, [corner[name] for name in names], color=green, width=0.6)
        for key, colour in (("printed", orange), ("safe", blue)):
            axes[2].axhline(corner[key], color=colour, linewidth=1, linestyle="--", label=f"{key} constant")
        axes[2].set_ylabel("test loss over training loss, Lemma 5.1")
        axes[2].tick_params(axis="x", labelrotation=15)
        axes[2].legend()
        return drawn

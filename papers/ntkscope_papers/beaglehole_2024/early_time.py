"""Beaglehole, Mitliagkas & Agarwala, Props 3, 4 and 10 and Eq. 4 to 28: feature matrices at the start of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ntkscope.core import Claim, Record
from ntkscope_papers.beaglehole_2024 import early_averages as averages
from ntkscope_papers.beaglehole_2024 import early_identities as identities
from ntkscope_papers.beaglehole_2024.early_claims import CLAIMS
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.results import once
from ntkscope_papers.qadeer_2023.theory_verdicts import theory_verdicts


@dataclass(frozen=True)
class EarlyTimeTheory(Experiment):
    """Beaglehole et al., Props 3, 4, 10 and Eq. 4-28: second derivatives of the feature matrices, free probability, errata.

    `trials`: random networks and matrices for identities. `draws`: initialisations for means. `rotations` of matrices with
    `rotated` rows, `formula_draws` words of matrices with `dimension` rows. `networks` of `width` for moments of R, and for the
    spread over networks of each size in `sizes`.
    """

    name = "early-time"
    free = ["trials", "networks", "rotations", "formula_draws"]

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

    def measure(self, run: Run) -> None:
        todo = measurements(self, run.seed)
        with run.record.stage("checks", total=len(todo), progress="auto" if run.progress else False) as stage:
            for name, compute in todo.items():
                once(run.record, name, compute)
                stage.advance(stage.done < len(todo))

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple([claim.published for claim in CLAIMS])

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def measurements(config: EarlyTimeTheory, seed: int) -> dict[str, Callable[[], dict[str, Any]]]:
    return {
        "decomposition": lambda: identities.decomposition(config.trials, seed),
        "descent": lambda: identities.descent(config.trials, seed),
        "nine terms": lambda: identities.nine_terms(config.trials, seed),
        "kernel forms": lambda: identities.kernel_forms(config.trials, seed),
        "expansions": lambda: identities.expansions(config.trials, seed),
        "isotropic": lambda: identities.isotropic(config.trials, seed),
        "alternating words": lambda: averages.alternating_words(config.rotations, config.rotated, seed),
        "free formulas": lambda: averages.free_formulas(config.formula_draws, config.dimension, seed),
        "moments of R": lambda: averages.moments_of_r(config.networks, config.width, seed),
        "Proposition 10": lambda: averages.proposition_10(config.draws, seed),
        "Wick step": lambda: averages.wick_step(config.draws, seed),
        "mean and covariance": lambda: averages.mean_and_covariance(config.draws, seed),
        "wide limit": lambda: averages.wide_limit(seed),
        "self-averaging": lambda: averages.self_averaging(config.networks, config.sizes, seed),
    }


def judge(config: EarlyTimeTheory, record: Record, difference: str) -> Iterator[Claim]:
    """Every check on what the record holds."""
    yield from theory_verdicts(CLAIMS, record, difference)


def draw(record: Record) -> dict[str, Any]:
    """Covariance over mean term by width; the spread over networks by size; Eq. 28 over the trace it stands for."""
    figure, axes = drawing.canvas(1, 3, width=3.9)
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
    return {"early-time": figure}

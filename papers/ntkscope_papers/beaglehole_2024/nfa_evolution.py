"""Beaglehole et al. (2024), Figures 2, 7 and 8: the uncentred and the centred feature ansatz through training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure
from scipy import stats

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, SPECTRA, correlation
from ntkscope_papers.beaglehole_2024.feature_runs import INTERVALS, FeatureRuns, Paths, every_scale, key_of, paths_of
from ntkscope_papers.framework import Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.intervals import CORRELATION, interval, short

SMALL = 0.01  # scales up to this one are small
EARLY = (5, 25)  # steps
DECAYING = ("decay-1", "decay-2")
isotropic = partial(claim, seeds=10, needs=every_scale("isotropic"))
decaying = partial(claim, seeds=10, needs=every_scale(*DECAYING))
WHOLE = "mse/"  # begins the legs whose rate is of MSE, as Appendix H may be read, not of ½·MSE
FIGURES = {"isotropic": "figure-2", "decay-1": "figure-7", "decay-2": "figure-8"}
TITLES = {
    "uncentred": "uncentred ρ",
    "centred": "centred ρ",
    "train": "training loss / maximum",
    "test": "test loss / maximum",
}


@dataclass(frozen=True)
class NFAEvolution(FeatureRuns):
    """Feature ansatz, Figures 2, 7 and 8: uncentred and centred correlations through training at several initial scales.

    Inputs with three spectra: isotropic (Figure 2), 1 / (1 + k) (Figure 7), 1 / (1 + k²) (Figure 8).
    """

    name = "nfa-evolution"
    spectra = tuple(SPECTRA)
    measures = {"uncentred": correlation(None), "centred": correlation("weights")}

    def variances(self) -> tuple[float, ...]:
        """What the printed scales mean if they are standard deviations."""
        return tuple(float(f"{scale**2:.6g}") for scale in self.scales)

    @leg(
        "{}/s{:g}",
        over=lambda self: [case for case in product(SPECTRA, self.variances()) if case[1] not in self.scales],
        optional=True,
    )
    def squared(self, run: Run, spectrum: str, scale: float) -> dict[str, Any]:
        """The same at the squared scales."""
        return self.path(run, spectrum, scale)

    @leg(WHOLE + "{}/s{:g}", over=lambda self: product(SPECTRA, self.scales), optional=True)
    def whole(self, run: Run, spectrum: str, scale: float) -> dict[str, Any]:
        """The same with the rate of MSE itself, which is that of twice ½·MSE."""
        return self.path(run, spectrum, scale, WHOLE, 2 * self.lr)

    @claim(
        "nfa-fig2-setting",
        "Figure 2, Appendix H",
        {"width": 256, "d": 32, "n": 256, "lr": 0.05, "steps": 800, "every": 5},
        needs=every_scale(*SPECTRA),
    )
    def setting(self, record: Record) -> Reading:
        """configuration; no run diverges, and losses over their maximum lie within 0 … 1"""
        largest, ends, diverged, moments = 0.0, {}, 0, set()
        for spectrum, paths in self.paths(record, self.spectra):
            for part in ("train", "test"):
                path = paths.rows[f"{part} loss"]
                largest = max(largest, float(np.nanmax(path / path.max(2, keepdims=True))))
            ends[spectrum] = four_digits(paths.final("train loss").mean(1))
            diverged += sum(record.metrics[key_of(spectrum, scale)]["diverged"] for scale in self.scales)
            moments.add(len(paths.steps))
        measured = {
            "width": self.width,
            "d": self.dimension,
            "n": self.items,
            "lr": self.lr,
            "steps": self.steps,
            "every": self.every,
            "s": list(self.scales),
            "final training loss by s": ends,
            "diverged": diverged,
        }
        exact = moments == {-(-self.steps // self.every) + 1}
        note = (
            "the loss is ½·MSE: on MSE itself, s = 1 overshoots at the first steps; s a variance; the plotted s are not"
            " printed"
        )
        return Reading(measured, exact and diverged == 0 and largest <= 1, note)

    @isotropic(
        "nfa-fig2-uncentred-sensitive",
        "Figure 2",
        "the final value can be extremely sensitive to s, particularly in layer 2",
    )
    def sensitive(self, record: Record) -> Reading:
        """range over s of the final uncentred correlation ≥ 0.2 in some layer, mean over seeds"""
        paths = paths_of(self.scales, record, "isotropic")
        ends = {layer: paths.final(f"uncentred {layer}") for layer in LAYERS}
        spans = {layer: values.max(0) - values.min(0) for layer, values in ends.items()}
        ranges = {layer: interval(span) for layer, span in spans.items()}
        more = interval(spans["layer2"] - spans["layer1"])
        measured = {
            "range over s": {layer: short(one) for layer, one in ranges.items()},
            "final by s": {layer: four_digits(values.mean(1)) for layer, values in ends.items()},
            "layer 2 less layer 1": short(more),
        }
        if all(key_of("isotropic", scale) in record.metrics for scale in self.variances()):
            beside = paths_of(self.variances(), record, "isotropic")
            measured["range over s, standard deviations"] = {
                layer: short(interval(np.ptp(beside.final(f"uncentred {layer}"), axis=0))) for layer in LAYERS
            }
        where = "layer 2" if more["low"] > 0 else "layer 1" if more["high"] < 0 else "neither layer more than the other"
        note = f"{INTERVALS}; the range is larger in: {where}"
        return Reading(measured, max(one["mean"] for one in ranges.values()) >= 0.2, note, seeds=paths.seeds)

    @isotropic("nfa-fig2-centred-robust", "Figure 2", "high at all s, and varies less with s than the uncentred one")
    def robust(self, record: Record) -> Reading:
        """both layers: range over s, averaged over time, below the uncentred one (interval of the paired difference
        below 0); least centred correlation ≥ 0.5, mean over seeds"""
        paths = paths_of(self.scales, record, "isotropic")
        measured, holds = robustness(paths)
        return Reading(measured, holds, INTERVALS, seeds=paths.seeds)

    @isotropic("nfa-fig2-centred-early", "Section 2.3", "especially high, and invariant to s, early in training")
    def early(self, record: Record) -> Reading:
        """steps 5 to 25, means over seeds: ≥ 0.8 at every s in both layers, spread over s ≤ 0.15"""
        paths = paths_of(self.scales, record, "isotropic")
        measured: dict[str, Any] = {}
        holds, until = True, []
        for layer in LAYERS:
            early = paths.between(f"centred {layer}", *EARLY)
            means = early.mean(1)  # (scales, moments)
            spreads = means.max(0) - means.min(0)
            measured[layer] = {
                f"step {EARLY[0]} by s": [short(interval(values[:, 0], CORRELATION)) for values in early],
                "least by s": [short(interval(values.min(1), CORRELATION)) for values in early],
                "spread, step by step": four_digits(spreads),
            }
            well = (means.min(0) >= 0.8) & (spreads <= 0.15)
            until.append(int(np.cumprod(well).sum()))  # moments from the first on
            holds = holds and bool(well.all())
        steps = [step for step in paths.steps if EARLY[0] <= step <= EARLY[1]]
        least = min(until)
        note = f"{INTERVALS}; " + (f"holds until step {steps[least - 1]}" if least else "holds at none of these steps")
        return Reading(measured, holds, note, seeds=paths.seeds)

    @isotropic("nfa-uncentred-rises", "Section 2.3, Appendix G", "small at the start, high after training")
    def rises(self, record: Record) -> Reading:
        """layer 1, s ≤ 0.01: final less initial uncentred correlation ≥ 0.2, mean over seeds"""
        paths = paths_of(self.scales, record, "isotropic")
        rises = {layer: rise(paths, layer) for layer in LAYERS}
        starts = {layer: short(interval(paths.rows[f"uncentred {layer}"][0, :, 0], CORRELATION)) for layer in LAYERS}
        measured = {
            "start": starts,
            "rise by s": {layer: {f"{s:g}": short(one) for s, one in rows.items()} for layer, rows in rises.items()},
        }
        small = [one["mean"] for s, one in rises["layer1"].items() if s <= SMALL]
        least = min(one["mean"] for one in rises["layer2"].values())
        note = f"{INTERVALS}; in layer 2, which starts at scale 1, the least rise is {least:.2f}"
        return Reading(measured, bool(small) and min(small) >= 0.2, note, seeds=paths.seeds)

    @decaying("nfa-fig7-8-robust", "Figures 7 and 8", "as Figure 2 with input spectra 1/(1+k) and 1/(1+k²)")
    def robust_decaying(self, record: Record) -> Reading:
        """as fig2-centred-robust for both spectra, and the uncentred correlation of layer 1 grows at s ≤ 0.01"""
        measured: dict[str, Any] = {}
        failing: list[str] = []
        for spectrum, paths in self.paths(record, DECAYING):
            measured[spectrum], robust = robustness(paths)
            rises = {f"{s:g}": one for s, one in rise(paths, "layer1").items() if s <= SMALL}
            measured[spectrum]["rise of layer 1"] = {s: short(one) for s, one in rises.items()}
            grows = bool(rises) and min(one["low"] for one in rises.values()) > 0
            failing += [f"{spectrum}: {what}" for what, well in (("robust", robust), ("grows", grows)) if not well]
        note = INTERVALS + (f"; fails: {', '.join(failing)}" if failing else "")
        return Reading(measured, not failing, note, seeds=paths.seeds)

    @decaying(
        "nfa-fig7-8-test-loss", "Appendix G", "test loss improves at smaller s, where both correlations are higher"
    )
    def test_loss(self, record: Record) -> Reading:
        """Spearman(s, final test loss) > 0 over at least four s, mean over seeds, both spectra"""
        measured: dict[str, Any] = {}
        holds = True
        for spectrum, paths in self.paths(record, DECAYING):
            loss = spearman(paths, "test loss")
            measured[spectrum] = {
                "Spearman(s, test loss)": short(loss),
                "test loss by s": four_digits(paths.final("test loss").mean(1)),
                **{
                    f"Spearman(s, {kind} {layer})": short(spearman(paths, f"{kind} {layer}"))
                    for kind, layer in product(self.measures, LAYERS)
                },
            }
            holds = holds and loss["mean"] > 0 and len(paths.scales) >= 4
        note = f"{INTERVALS}; a negative one of a correlation: higher at small s"
        return Reading(measured, holds, note, seeds=paths.seeds)

    @figure
    def evolution(self, record: Record) -> dict[str, Figure]:
        """One figure per spectrum: rows for layers, columns for correlations and losses."""
        figures: dict[str, Figure] = {}
        for spectrum, paths in self.paths(record, self.spectra):
            figures[FIGURES[spectrum]], axes = drawing.canvas(2, 4, width=3.4, height=2.8)
            for axis, (layer, (kind, title)) in zip(axes, product(LAYERS, TITLES.items())):
                if kind in self.measures:
                    values, title = paths.rows[f"{kind} {layer}"], f"{title}, {layer}"
                else:
                    losses = paths.rows[f"{kind} loss"]
                    values = losses / losses.max(2, keepdims=True)
                paths.draw(axis, values)
                axis.set_ylim(0, 1.02)
                drawing.label(axis, title=title, x="step")
            axes[0].legend()
        return figures or {"figure-2": drawing.canvas()[0]}


def four_digits(values: Float64[np.ndarray, " n"]) -> list[float]:
    return [round(float(value), 4) for value in values]


def robustness(paths: Paths) -> tuple[dict[str, Any], bool]:
    """Ranges over s of both correlations through training, their paired difference, and the least centred one."""
    measured: dict[str, Any] = {}
    holds = True
    for layer in LAYERS:
        rows = {kind: paths.moved(f"{kind} {layer}") for kind in ("centred", "uncentred")}
        ranges = {kind: (values.max(0) - values.min(0)).mean(1) for kind, values in rows.items()}  # by seed
        gap = interval(ranges["centred"] - ranges["uncentred"])
        least = interval(rows["centred"].min((0, 2)), CORRELATION)
        measured[layer] = {
            **{f"range of the {kind}": short(interval(values)) for kind, values in ranges.items()},
            "difference": short(gap),
            "least centred": short(least),
        }
        holds = holds and gap["high"] < 0 and least["mean"] >= 0.5
    return measured, holds


def rise(paths: Paths, layer: str) -> dict[float, dict[str, float]]:
    """Final less initial uncentred correlation by scale."""
    path = paths.rows[f"uncentred {layer}"]
    return {scale: interval(path[i, :, -1] - path[i, :, 0]) for i, scale in enumerate(paths.scales)}


def spearman(paths: Paths, name: str) -> dict[str, float]:
    """Rank correlation of s and the last of a row, seed by seed; 0 for one that does not change with s."""
    members = paths.final(name).T
    ranks = (stats.spearmanr(paths.scales, one).statistic if np.ptp(one) > 0 else 0.0 for one in members)
    return interval(ranks, CORRELATION)

"""Verdicts on the statements of `nfa-evolution` from its record: figures with 95 % intervals over seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy import stats

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, SPECTRA
from ntkscope_papers.beaglehole_2024.feature_runs import Paths, as_deviations, key_of, missing, paths_of
from ntkscope_papers.framework.claims import Reading, claim, lacking
from ntkscope_papers.framework.intervals import CORRELATION, interval, short

NAME = "nfa-evolution"
SMALL = 0.01  # scales up to this one are small
EARLY = (5, 25)  # steps
DECAYING = ("decay-1", "decay-2")
INTERVALS = "mean over seeds, then its 95 % interval"


def ranges(values: Float64[np.ndarray, "scales seeds some"]) -> Float64[np.ndarray, " seeds"]:
    """Largest less smallest over the scales, averaged over the moments."""
    spread: Float64[np.ndarray, " seeds"] = (values.max(0) - values.min(0)).mean(1)
    return spread


def final(paths: Paths, name: str) -> Float64[np.ndarray, "scales seeds"]:
    values: Float64[np.ndarray, "scales seeds"] = paths.rows[name][:, :, -1]
    return values


def robustness(paths: Paths) -> tuple[dict[str, Any], bool]:
    """Ranges over s of both correlations through training, their paired difference, and the least centred one."""
    measured: dict[str, Any] = {}
    holds = True
    for layer in LAYERS:
        centred, uncentred = (ranges(paths.moved(f"{kind} {layer}")) for kind in ("centred", "uncentred"))
        gap = interval(centred - uncentred)
        least = interval(paths.moved(f"centred {layer}").min((0, 2)), CORRELATION)
        measured[layer] = {
            "range of the centred": short(interval(centred)),
            "range of the uncentred": short(interval(uncentred)),
            "difference": short(gap),
            "least centred": short(least),
        }
        holds = holds and gap["high"] < 0 and least["mean"] >= 0.5
    return measured, holds


def rise(paths: Paths, layer: str) -> dict[float, dict[str, float]]:
    """Final less initial uncentred correlation by scale."""
    path = paths.rows[f"uncentred {layer}"]
    return {scale: interval(path[i, :, -1] - path[i, :, 0]) for i, scale in enumerate(paths.scales)}


def spearman(scales: tuple[float, ...], values: Float64[np.ndarray, "scales seeds"]) -> dict[str, float]:
    """Rank correlation of s and a figure, seed by seed; 0 for one that does not change with s."""
    return interval(
        (stats.spearmanr(scales, one).statistic if np.ptp(one) > 0 else 0.0 for one in values.T), CORRELATION
    )


@claim(
    "nfa-fig2-setting",
    "Figure 2, Appendix H",
    {"width": 256, "d": 32, "n": 256, "lr": 0.05, "steps": 800, "every": 5},
    "configuration; no run diverges, and losses over their maximum lie within 0 … 1",
)
def _setting(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, list(SPECTRA)):
        return lacking(*lacks)
    largest, ends, diverged, moments = 0.0, {}, 0, set()
    for spectrum in SPECTRA:
        paths = paths_of(config.scales, record, spectrum)
        for part in ("train", "test"):
            path = paths.rows[f"{part} loss"]
            largest = max(largest, float(np.nanmax(path / path.max(2, keepdims=True))))
        ends[spectrum] = [round(float(value), 4) for value in final(paths, "train loss").mean(1)]
        diverged += sum(record.metrics[key_of(spectrum, scale)]["diverged"] for scale in config.scales)
        moments.add(len(paths.steps))
    measured = {
        "width": config.width,
        "d": config.dimension,
        "n": config.items,
        "lr": config.lr,
        "steps": config.steps,
        "every": config.every,
        "s": list(config.scales),
        "final training loss by s": ends,
        "diverged": diverged,
    }
    exact = moments == {-(-config.steps // config.every) + 1}
    note = "the loss is ½·MSE: on MSE itself, s = 1 overshoots at the first steps; s a variance; the plotted s are not printed"
    return Reading(measured, exact and diverged == 0 and largest <= 1, note)


@claim(
    "nfa-fig2-uncentred-sensitive",
    "Figure 2",
    "the final value can be extremely sensitive to s, particularly in layer 2",
    "range over s of the final uncentred correlation ≥ 0.2 in some layer, mean over seeds",
    seeds=10,
)
def _sensitive(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, ["isotropic"]):
        return lacking(*lacks)
    paths = paths_of(config.scales, record, "isotropic")
    ends = {layer: final(paths, f"uncentred {layer}") for layer in LAYERS}
    told = {layer: interval(values.max(0) - values.min(0)) for layer, values in ends.items()}
    more = interval((ends["layer2"].max(0) - ends["layer2"].min(0)) - (ends["layer1"].max(0) - ends["layer1"].min(0)))
    measured = {
        "range over s": {layer: short(one) for layer, one in told.items()},
        "final by s": {layer: [round(float(v), 4) for v in values.mean(1)] for layer, values in ends.items()},
        "layer 2 less layer 1": short(more),
    }
    other = as_deviations(config.scales)
    if all(key_of("isotropic", scale) in record.metrics for scale in other):
        beside = paths_of(other, record, "isotropic")
        measured["range over s, standard deviations"] = {
            layer: short(interval(np.ptp(final(beside, f"uncentred {layer}"), axis=0))) for layer in LAYERS
        }
    where = "layer 2" if more["low"] > 0 else "layer 1" if more["high"] < 0 else "neither layer more than the other"
    return Reading(
        measured,
        max(one["mean"] for one in told.values()) >= 0.2,
        f"{INTERVALS}; the range is larger in: {where}",
        seeds=paths.seeds,
    )


@claim(
    "nfa-fig2-centred-robust",
    "Figure 2",
    "high at all s, and varies less with s than the uncentred one",
    "both layers: range over s, averaged over time, below the uncentred one (interval of the paired difference below 0);"
    " least centred correlation ≥ 0.5, mean over seeds",
    seeds=10,
)
def _robust(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, ["isotropic"]):
        return lacking(*lacks)
    paths = paths_of(config.scales, record, "isotropic")
    measured, holds = robustness(paths)
    return Reading(measured, holds, INTERVALS, seeds=paths.seeds)


@claim(
    "nfa-fig2-centred-early",
    "Section 2.3",
    "especially high, and invariant to s, early in training",
    "steps 5 to 25, means over seeds: ≥ 0.8 at every s in both layers, spread over s ≤ 0.15",
    seeds=10,
)
def _early(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, ["isotropic"]):
        return lacking(*lacks)
    paths = paths_of(config.scales, record, "isotropic")
    measured: dict[str, Any] = {}
    holds, until = True, []
    for layer in LAYERS:
        early = paths.since(f"centred {layer}", *EARLY)
        means = early.mean(1)  # (scales, moments)
        spreads = means.max(0) - means.min(0)
        measured[layer] = {
            f"step {EARLY[0]} by s": [short(interval(values[:, 0], CORRELATION)) for values in early],
            "least by s": [short(interval(values.min(1), CORRELATION)) for values in early],
            "spread, step by step": [round(float(value), 4) for value in spreads],
        }
        well = (means.min(0) >= 0.8) & (spreads <= 0.15)
        until.append(int(np.cumprod(well).sum()))  # moments from the first on
        holds = holds and bool(well.all())
    steps = [step for step in paths.steps if EARLY[0] <= step <= EARLY[1]]
    least = min(until)
    note = f"{INTERVALS}; " + (f"holds until step {steps[least - 1]}" if least else "holds at none of these steps")
    return Reading(measured, holds, note, seeds=paths.seeds)


@claim(
    "nfa-uncentred-rises",
    "Section 2.3, Appendix G",
    "small at the start, high after training",
    "layer 1, s ≤ 0.01: final less initial uncentred correlation ≥ 0.2, mean over seeds",
    seeds=10,
)
def _rises(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, ["isotropic"]):
        return lacking(*lacks)
    paths = paths_of(config.scales, record, "isotropic")
    told = {layer: rise(paths, layer) for layer in LAYERS}
    starts = {layer: short(interval(paths.rows[f"uncentred {layer}"][0, :, 0], CORRELATION)) for layer in LAYERS}
    measured = {
        "start": starts,
        "rise by s": {layer: {f"{s:g}": short(one) for s, one in rows.items()} for layer, rows in told.items()},
    }
    small = [one["mean"] for s, one in told["layer1"].items() if s <= SMALL]
    least = min(one["mean"] for one in told["layer2"].values())
    note = f"{INTERVALS}; in layer 2, which starts at scale 1, the least rise is {least:.2f}"
    return Reading(measured, bool(small) and min(small) >= 0.2, note, seeds=paths.seeds)


@claim(
    "nfa-fig7-8-robust",
    "Figures 7 and 8",
    "as Figure 2 with input spectra 1/(1+k) and 1/(1+k²)",
    "as fig2-centred-robust for both spectra, and the uncentred correlation of layer 1 grows at s ≤ 0.01",
    seeds=10,
)
def _robust_decaying(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, DECAYING):
        return lacking(*lacks)
    measured: dict[str, Any] = {}
    holds, failing = True, []
    for spectrum in DECAYING:
        paths = paths_of(config.scales, record, spectrum)
        measured[spectrum], robust = robustness(paths)
        rises = {f"{s:g}": one for s, one in rise(paths, "layer1").items() if s <= SMALL}
        measured[spectrum]["rise of layer 1"] = {s: short(one) for s, one in rises.items()}
        grows = bool(rises) and min(one["low"] for one in rises.values()) > 0
        failing += [f"{spectrum}: {what}" for what, well in (("robust", robust), ("grows", grows)) if not well]
        holds = holds and robust and grows
    note = INTERVALS + (f"; fails: {', '.join(failing)}" if failing else "")
    return Reading(measured, holds, note, seeds=paths.seeds)


@claim(
    "nfa-fig7-8-test-loss",
    "Appendix G",
    "test loss improves at smaller s, where both correlations are higher",
    "Spearman(s, final test loss) > 0 over at least four s, mean over seeds, both spectra",
    seeds=10,
)
def _test_loss(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, DECAYING):
        return lacking(*lacks)
    measured: dict[str, Any] = {}
    holds = True
    for spectrum in DECAYING:
        paths = paths_of(config.scales, record, spectrum)
        loss = spearman(paths.scales, final(paths, "test loss"))
        measured[spectrum] = {
            "Spearman(s, test loss)": short(loss),
            "test loss by s": [round(float(value), 4) for value in final(paths, "test loss").mean(1)],
            **{
                f"Spearman(s, {kind} {layer})": short(spearman(paths.scales, final(paths, f"{kind} {layer}")))
                for kind in ("uncentred", "centred")
                for layer in LAYERS
            },
        }
        holds = holds and loss["mean"] > 0 and len(paths.scales) >= 4
    return Reading(
        measured, holds, f"{INTERVALS}; a negative one of a correlation: higher at small s", seeds=paths.seeds
    )

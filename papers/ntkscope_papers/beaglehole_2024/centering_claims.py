"""Verdicts on the statements of `nfa-centerings` from its record: figures with 95 % intervals over seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS
from ntkscope_papers.beaglehole_2024.feature_runs import missing, paths_of
from ntkscope_papers.framework.claims import Reading, claim, lacking
from ntkscope_papers.framework.intervals import interval, short

NAME = "nfa-centerings"
EARLY = 25  # steps
SPECTRA = ("isotropic", "decay-2")
INTERVALS = "mean over seeds, then its 95 % interval"


@claim(
    "nfa-double-centred",
    "Appendix B, Figure 4",
    "small early or from large weights, relevant over longer training",
    "means over seeds, both layers: ratio ≤ 0.2 in the first 25 steps at the largest s; at every s larger at the end than"
    " after the first steps (interval of the difference above 0); at the end larger at the smallest s than at the largest",
    seeds=10,
)
def _double(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, ["isotropic"]):
        return lacking(*lacks)
    paths = paths_of(config.scales, record, "isotropic")
    small, large = (paths.of_scale(scale) for scale in (min(paths.scales), max(paths.scales)))
    measured: dict[str, Any] = {}
    failing = []
    for layer in LAYERS:
        path = paths.moved(f"ratio {layer}")
        early = interval(paths.since(f"ratio {layer}", 1, EARLY)[large].max(1))
        growth = [interval(path[i, :, -1] - path[i, :, 0]) for i in range(len(paths.scales))]
        more = interval(path[small, :, -1] - path[large, :, -1])
        measured[layer] = {
            f"largest until step {EARLY} at the largest s": short(early),
            "first by s": [short(interval(values[:, 0])) for values in path],
            "end by s": [short(interval(values[:, -1])) for values in path],
            "end at the smallest s less at the largest": short(more),
        }
        checks = {
            "small early": early["mean"] <= 0.2,
            "grows": min(one["low"] for one in growth) > 0,
            "larger at small s": more["mean"] > 0,
        }
        failing += [f"{layer}: {name}" for name, well in checks.items() if not well]
    note = INTERVALS + (f"; fails: {', '.join(failing)}" if failing else "")
    if "whole-loss" in record.metrics:
        found = record.metrics["whole-loss"]["losses"]
        measured["after the first steps at the largest s, layer 1"] = {
            name: short(interval(row[0] for row in one["ratio"])) for name, one in found.items()
        }
        note += "; the loss is ½·MSE, the other one beside"
    return Reading(measured, not failing, note, seeds=paths.seeds)


@claim(
    "nfa-ptk-centred",
    "Appendix B, Figure 5",
    "decreases through training, isotropic and 1/(1+k²)",
    "ρ(W₀ᵀW₀, W₀ᵀK̄W₀) at the end below the first measured one, both layers and spectra, averaged over seeds and s",
    seeds=10,
)
def _tangents(config: Any, record: Record) -> Reading:
    if lacks := missing(config, record, SPECTRA):
        return lacking(*lacks)
    measured: dict[str, Any] = {}
    holds = True
    rising = []
    for spectrum in SPECTRA:
        paths = paths_of(config.scales, record, spectrum)
        measured[spectrum] = {}
        for layer in LAYERS:
            path = paths.moved(f"tangents {layer}")
            change = path[:, :, -1] - path[:, :, 0]
            told = interval(change.mean(0))
            measured[spectrum][layer] = {
                "first by s": [round(float(value), 4) for value in path[:, :, 0].mean(1)],
                "end by s": [round(float(value), 4) for value in path[:, :, -1].mean(1)],
                "change, averaged over s": short(told),
            }
            rising += [
                f"{spectrum} {layer} s = {scale:g}"
                for scale, one in zip(paths.scales, change)
                if float(np.mean(one)) >= 0
            ]
            holds = holds and told["mean"] < 0
    note = INTERVALS + (f"; not lower at the end: {', '.join(rising)}" if rising else "; lower at every s")
    return Reading(measured, holds, note, seeds=paths.seeds)


@claim(
    "nfa-centred-in-numerator",
    "Section 2.3",
    "tr(W̄ᵀW̄ W̄ᵀKW̄) is a term of tr(WᵀW WᵀKW)",
    "the sixteen terms add up to the whole, relative error ≤ 1e-10",
    needs=["expansion"],
)
def _numerator(config: Any, record: Record) -> Reading:
    found = record.metrics["expansion"]["scales"]
    gap = max(max(one["gap"].values()) for one in found.values())
    shares = {f"s = {scale}": one["shares"] for scale, one in found.items()}
    note = "shares of the whole after training: of the term with W̄ alone, and of that with W₀ alone"
    return Reading({"gap": gap, "shares": shares}, gap <= 1e-10, note, exact=True)

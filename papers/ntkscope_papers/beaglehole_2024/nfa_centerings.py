"""Beaglehole et al. (2024), Figures 4 and 5: what the change of the tangents adds to the feature ansatz."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import nn

from ntkscope.core import Record, Split
from ntkscope.measures.feature_ansatz import double_centred_ratio, sixteen_terms
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, correlation, finals, follow, tangents_of, weights_of
from ntkscope_papers.beaglehole_2024.feature_runs import INTERVALS, FeatureRuns, every_scale, paths_of
from ntkscope_papers.framework import Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.intervals import interval, short

EARLY = 25  # steps
SHOWN = {
    "figure-4": ("isotropic", "ratio", "double-centred / centred term"),
    "figure-5a": ("isotropic", "tangents", "ρ(W₀ᵀW₀, W₀ᵀK̄W₀), isotropic"),
    "figure-5b": ("decay-2", "tangents", "ρ(W₀ᵀW₀, W₀ᵀK̄W₀), spectrum 1/(1+k²)"),
}


@dataclass(frozen=True)
class NFACenterings(FeatureRuns):
    """Feature ansatz, Figures 4 and 5: the double-centred term through training, and tangents against the initial weights.

    The runs of `nfa-evolution` with the two spectra of Figure 5; Figure 4's inputs are isotropic.
    """

    name = "nfa-centerings"
    spectra = ("isotropic", "decay-2")
    measures = {"ratio": double_centred_ratio, "tangents": correlation("tangents")}

    @leg()
    def expansion(self, run: Run) -> dict[str, Any]:
        """The sixteen terms of the numerator after training three networks, at the smallest and the largest scale."""
        task, seeds, terms = self.task("isotropic"), self.seeds_from(run.seed)[:3], {}
        for scale in (self.scales[0], self.scales[-1]):
            followed = follow(task, scale, seeds, {}, lr=self.lr, steps=self.steps, device=run.device)
            before = [task.network(scale, seed).double().eval() for seed in seeds]
            terms[f"{scale:g}"] = sixteen(followed.splits, before, finals(followed.ensemble))
        return {"scales": terms}

    @leg("whole-loss")
    def whole_loss(self, run: Run) -> dict[str, Any]:
        """Figure 4's ratio after the first steps at the largest scale, on MSE without its ½: twice the rate."""
        task, seeds, losses = self.task("isotropic"), self.seeds_from(run.seed), {}
        measures = {"ratio": double_centred_ratio}
        for name, factor in (("½·MSE", 1.0), ("MSE", 2.0)):
            lr = factor * self.lr
            followed = follow(task, self.scales[-1], seeds, measures, lr=lr, steps=self.every, device=run.device)
            losses[name] = {
                "ratio": followed.values["ratio"][:, -1].tolist(),
                "loss": [followed.losses["train"][:, at].tolist() for at in (0, -1)],
            }
        return {"step": self.every, "losses": losses}

    @claim(
        "nfa-double-centred",
        "Appendix B, Figure 4",
        "small early or from large weights, relevant over longer training",
        seeds=10,
        needs=every_scale("isotropic"),
    )
    def double(self, record: Record) -> Reading:
        """means over seeds, both layers: ratio ≤ 0.2 in the first 25 steps at the largest s; at every s larger at the
        end than after the first steps (interval of the difference above 0); at the end larger at the smallest s than
        at the largest"""
        paths = paths_of(self.scales, record, "isotropic")
        small, large = (paths.scales.index(scale) for scale in (min(paths.scales), max(paths.scales)))
        measured: dict[str, Any] = {}
        failing = []
        for layer in LAYERS:
            path = paths.moved(f"ratio {layer}")
            early = interval(paths.between(f"ratio {layer}", 1, EARLY)[large].max(1))
            growth = [interval(values[:, -1] - values[:, 0]) for values in path]
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
            measured["after the first steps at the largest s, layer 1"] = (losses := after_the_first_steps(record))
            early = losses["MSE"]["estimate"]
            note += (
                f"; the loss is ½·MSE; on MSE itself the ratio after the first steps at the largest s is {early:.2g}"
            )
        return Reading(measured, not failing, note, seeds=paths.seeds)

    @claim(
        "nfa-ptk-centred",
        "Appendix B, Figure 5",
        "decreases through training, isotropic and 1/(1+k²)",
        seeds=10,
        needs=every_scale(*spectra),
    )
    def tangents(self, record: Record) -> Reading:
        """ρ(W₀ᵀW₀, W₀ᵀK̄W₀) at the end below the first measured one: both layers and spectra, every s, averaged over seeds"""
        measured: dict[str, Any] = {}
        rising = []
        for spectrum, paths in self.paths(record, self.spectra):
            measured[spectrum] = {}
            for layer in LAYERS:
                path = paths.moved(f"tangents {layer}")
                change = path[:, :, -1] - path[:, :, 0]
                over_scales = interval(change.mean(0))
                measured[spectrum][layer] = {
                    "first by s": [round(float(value), 4) for value in path[:, :, 0].mean(1)],
                    "end by s": [round(float(value), 4) for value in path[:, :, -1].mean(1)],
                    "change, averaged over s": short(over_scales),
                }
                rising += [
                    f"{spectrum} {layer} s = {scale:g}"
                    for scale, one in zip(paths.scales, change)
                    if float(np.mean(one)) >= 0
                ]
        note = INTERVALS + (f"; not lower at the end: {', '.join(rising)}" if rising else "; lower at every s")
        return Reading(measured, not rising, note, seeds=paths.seeds)

    @claim("nfa-centred-in-numerator", "Section 2.3", "tr(W̄ᵀW̄ W̄ᵀKW̄) is a term of tr(WᵀW WᵀKW)", needs=["expansion"])
    def numerator(self, record: Record) -> Reading:
        """the sixteen terms add up to the whole, relative error ≤ 1e-10"""
        scales = record.metrics["expansion"]["scales"]
        gap = max(max(one["gap"].values()) for one in scales.values())
        shares = {f"s = {scale}": one["shares"] for scale, one in scales.items()}
        note = "shares of the whole after training: of the term with W̄ alone, and of that with W₀ alone"
        return Reading({"gap": gap, "shares": shares}, gap <= 1e-10, note, exact=True)

    @figure
    def paths_by_layer(self, record: Record) -> dict[str, Figure]:
        """Figure 4's ratio, and Figure 5's correlation for both spectra: means over seeds, bands of one standard error."""
        figures: dict[str, Figure] = {}
        for name, (spectrum, kind, title) in SHOWN.items():
            figures[name], axes = drawing.canvas(1, 2, width=4.2, height=3.2)
            for _, paths in self.paths(record, [spectrum]):
                for axis, layer in zip(axes, LAYERS):
                    paths.draw(axis, paths.rows[f"{kind} {layer}"])
                    drawing.label(axis, title=f"{title}, {layer}", x="step")
                axes[0].legend()
        return figures


def after_the_first_steps(record: Record) -> dict[str, Any]:
    """The ratio of layer 1 at the largest scale, by loss."""
    losses = record.metrics["whole-loss"]["losses"]
    return {name: short(interval(row[0] for row in one["ratio"])) for name, one in losses.items()}


def sixteen(splits: list[Split], before: list[nn.Module], after: list[nn.Module]) -> dict[str, Any]:
    """Of trained networks: how far the sixteen terms are from the whole numerator, and the share of each kind of term."""
    gaps, shares = dict.fromkeys(LAYERS, 0.0), {}
    for layer in LAYERS:
        each = []
        for split, old, new in zip(splits, before, after):
            W0, weights = (weights_of(dict(model.named_parameters())) for model in (old, new))
            b = tangents_of({name: W[None] for name, W in weights.items()}, split.train.x.double()[None])[layer][0]
            W, K = weights[layer], b.T @ b / len(b)
            terms = sixteen_terms(W, W0[layer], K)
            whole = float(((W.T @ W) * (W.T @ K @ W)).sum())
            gaps[layer] = max(gaps[layer], abs(sum(terms.values()) / whole - 1))
            each.append({"centred": terms["cccc"] / whole, "initial": terms["0000"] / whole})
        shares[layer] = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
    return {"gap": gaps, "shares": shares, "terms": 16}

"""Beaglehole et al. (2024), Figures 4 and 5: what the change of the tangents adds to the feature ansatz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024 import centering_claims as claims
from ntkscope_papers.beaglehole_2024 import feature_definitions as definitions
from ntkscope_papers.beaglehole_2024.centering_claims import NAME
from ntkscope_papers.beaglehole_2024.centering_figures import draw
from ntkscope_papers.beaglehole_2024.feature_path import correlation, finals, follow, ratio
from ntkscope_papers.beaglehole_2024.feature_runs import FREE, SMALL, FeatureRuns, legs_of
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Run
from ntkscope_papers.framework.legs import Leg, run_legs

MEASURES = {"ratio": ratio, "tangents": correlation("tangents")}
SPECTRA = ("isotropic", "decay-2")


@dataclass(frozen=True)
class NFACenterings(FeatureRuns):
    """Feature ansatz, Figures 4 and 5: the double-centred term through training, and tangents against the initial weights.

    The runs of `nfa-evolution` with the two spectra of Figure 5; Figure 4's inputs are isotropic.
    """

    name = NAME
    statements = claims_of(claims)
    free = FREE

    smoke = {
        **SMALL,
    }

    def measure(self, run: Run) -> None:
        run_legs(run.record, legs(self, run.record, run.seed, run.device), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def expanded(config: NFACenterings, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """The sixteen terms of the numerator after training, at the smallest and the largest scale."""
    found = {}
    for scale in (config.scales[0], config.scales[-1]):
        task = config.task("isotropic")
        run = follow(task, scale, seeds, {}, lr=config.lr, steps=config.steps, every=config.steps, device=device)
        before = [task.network(scale, seed).double().eval() for seed in seeds]
        found[f"{scale:g}"] = definitions.sixteen(run.splits, before, finals(run.ensemble))
    return {"scales": found}


def whole_loss(config: NFACenterings, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """Figure 4's ratio after the first steps at the largest scale, on MSE without its ½: twice the rate."""
    found = {}
    for name, factor in (("½·MSE", 1.0), ("MSE", 2.0)):
        run = follow(
            config.task("isotropic"),
            config.scales[-1],
            seeds,
            {"ratio": ratio},
            lr=factor * config.lr,
            steps=config.every,
            every=config.every,
            device=device,
        )
        found[name] = {
            "ratio": run.values["ratio"][:, -1].tolist(),
            "loss": [run.losses["train"][:, at].tolist() for at in (0, -1)],
        }
    return {"step": config.every, "losses": found}


def legs(config: NFACenterings, record: Record, seed: int, device: torch.device) -> list[Leg]:
    seeds = list(range(seed, seed + config.seeds))
    return [
        Leg("expansion", partial(expanded, config, seeds[:3], device)),
        Leg("whole-loss", partial(whole_loss, config, seeds, device)),
        *legs_of(config, record, SPECTRA, MEASURES, seeds, device),
    ]

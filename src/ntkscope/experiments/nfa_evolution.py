"""Beaglehole et al. (2024), Figures 2, 7 and 8: the uncentred and the centred feature ansatz through training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ntkscope.core import Record
from ntkscope.experiments._evolution_claims import NAME, PUBLISHED, READINGS
from ntkscope.experiments._evolution_figures import draw
from ntkscope.experiments._feature_path import SPECTRA, correlation
from ntkscope.experiments._feature_runs import FREE, SMALL, FeatureRuns, as_deviations, legs_of
from ntkscope.experiments._legs import run_legs
from ntkscope.experiments.registry import experiment, scaled

MEASURES = {"uncentred": correlation(None), "centred": correlation("weights")}


@dataclass(frozen=True)
class NFAEvolution(FeatureRuns):
    """Inputs with three spectra: isotropic (Figure 2), 1 / (1 + k) (Figure 7), 1 / (1 + k²) (Figure 8).

    Legs at squared scales, which is what the printed ones mean if they are standard deviations, run if they are named.
    """

    smoke = scaled(**SMALL)


def run(
    config: NFAEvolution, record: Record, *, device: torch.device, root: str | None, seed: int, progress: bool
) -> None:
    """Feature ansatz, Figures 2, 7 and 8: uncentred and centred correlations through training at several initial scales."""
    seeds = list(range(seed, seed + config.seeds))
    made = legs_of(config, record, list(SPECTRA), MEASURES, seeds, device, as_deviations(config.scales))
    run_legs(record, made, config.legs, progress=progress)


experiment(NAME, config=NFAEvolution, published=PUBLISHED, judge=READINGS, draw=draw, free=FREE)(run)

"""Beaglehole et al. (2024), Figures 2, 7 and 8: the uncentred and the centred feature ansatz through training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.evolution_claims import NAME, PUBLISHED, READINGS
from ntkscope_papers.beaglehole_2024.evolution_figures import draw
from ntkscope_papers.beaglehole_2024.feature_path import SPECTRA, correlation
from ntkscope_papers.beaglehole_2024.feature_runs import FREE, SMALL, FeatureRuns, as_deviations, legs_of
from ntkscope_papers.framework.experiment import experiment
from ntkscope_papers.framework.legs import run_legs

MEASURES = {"uncentred": correlation(None), "centred": correlation("weights")}


@dataclass(frozen=True)
class NFAEvolution(FeatureRuns):
    """Inputs with three spectra: isotropic (Figure 2), 1 / (1 + k) (Figure 7), 1 / (1 + k²) (Figure 8).

    Legs at squared scales, which is what the printed ones mean if they are standard deviations, run if they are named.
    """

    smoke = {
        **SMALL,
    }


def run(
    config: NFAEvolution, record: Record, *, device: torch.device, root: str | None, seed: int, progress: bool
) -> None:
    """Feature ansatz, Figures 2, 7 and 8: uncentred and centred correlations through training at several initial scales."""
    seeds = list(range(seed, seed + config.seeds))
    made = legs_of(config, record, list(SPECTRA), MEASURES, seeds, device, as_deviations(config.scales))
    run_legs(record, made, config.legs, progress=progress)


EXPERIMENT = experiment(run, NAME, config=NFAEvolution, published=PUBLISHED, judge=READINGS, draw=draw, free=FREE)

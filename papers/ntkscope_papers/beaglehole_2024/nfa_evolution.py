"""Beaglehole et al. (2024), Figures 2, 7 and 8: the uncentred and the centred feature ansatz through training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024 import evolution_claims as claims
from ntkscope_papers.beaglehole_2024.evolution_claims import NAME
from ntkscope_papers.beaglehole_2024.evolution_figures import draw
from ntkscope_papers.beaglehole_2024.feature_path import SPECTRA, correlation
from ntkscope_papers.beaglehole_2024.feature_runs import FREE, SMALL, FeatureRuns, as_deviations, legs_of
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Run
from ntkscope_papers.framework.legs import run_legs

MEASURES = {"uncentred": correlation(None), "centred": correlation("weights")}


@dataclass(frozen=True)
class NFAEvolution(FeatureRuns):
    """Feature ansatz, Figures 2, 7 and 8: uncentred and centred correlations through training at several initial scales.

    Inputs with three spectra: isotropic (Figure 2), 1 / (1 + k) (Figure 7), 1 / (1 + k²) (Figure 8).

    Legs at squared scales, which is what the printed ones mean if they are standard deviations, run if they are named.
    """

    name = NAME
    statements = claims_of(claims)
    free = FREE

    smoke = {
        **SMALL,
    }

    def measure(self, run: Run) -> None:
        seeds = list(range(run.seed, run.seed + self.seeds))
        made = legs_of(self, run.record, list(SPECTRA), MEASURES, seeds, run.device, as_deviations(self.scales))
        run_legs(run.record, made, self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)

"""The runs of Figures 2, 4, 5, 7 and 8 of the feature-ansatz paper: one leg per input spectrum and initial scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, PARTS, SPECTRA, ChainTask, Followed, Measure, follow
from ntkscope_papers.framework.experiment import Experiment
from ntkscope_papers.framework.legs import Leg


@dataclass(frozen=True)
class FeatureRuns(Experiment):
    """`scales` are variances of the first layer's weights times the input dimension; `lr` is of ½·MSE, full batches."""

    items: int = 256
    dimension: int = 32
    width: int = 256
    rank: int = 5
    test_items: int = 1024
    scales: tuple[float, ...] = (0.001, 0.01, 0.1, 0.3, 1.0)
    lr: float = 0.05
    steps: int = 800
    every: int = 5
    seeds: int = 10

    def task(self, spectrum: str) -> ChainTask:
        return ChainTask(
            self.items,
            self.dimension,
            self.width,
            rank=self.rank,
            test_items=self.test_items,
            decay=SPECTRA[spectrum],
        )

    def followed(
        self, spectrum: str, scale: float, seeds: Sequence[int], measures: Mapping[str, Measure], device: torch.device
    ) -> Followed:
        return follow(
            self.task(spectrum),
            scale,
            seeds,
            measures,
            lr=self.lr,
            steps=self.steps,
            every=self.every,
            device=device,
        )


SMALL: Mapping[str, Any] = {
    "items": 64,
    "dimension": 10,
    "width": 32,
    "test_items": 64,
    "scales": (0.01, 0.1, 1.0),
    "steps": 200,
    "seeds": 2,
}
FREE = ("seeds", "test_items")


def key_of(spectrum: str, scale: float) -> str:
    """The leg of a spectrum and a scale.

    >>> key_of("isotropic", 0.01)
    'isotropic/s0.01'
    """
    return f"{spectrum}/s{scale:g}"


def array_of(spectrum: str, scale: float) -> str:
    """The array that holds its paths.

    >>> array_of("isotropic", 0.01)
    'path-isotropic-s0_01'
    """
    return f"path-{spectrum}-s{scale:g}".replace(".", "_")


def columns(measures: Sequence[str]) -> list[str]:
    """What the rows of such an array are, in order."""
    return [f"{name} {layer}" for name in measures for layer in LAYERS] + [f"{part} loss" for part in PARTS]


def run_leg(
    config: FeatureRuns,
    record: Record,
    spectrum: str,
    scale: float,
    measures: Mapping[str, Measure],
    seeds: Sequence[int],
    device: torch.device,
) -> dict[str, Any]:
    """Train, and keep the paths (rows, seeds, moments) as an array."""
    run = config.followed(spectrum, scale, seeds, measures, device)
    rows = [run.values[name][:, :, place] for name in measures for place in range(len(LAYERS))]
    rows += [run.losses[part] for part in PARTS]
    record.array(array_of(spectrum, scale), np.stack(rows))
    lost = run.ensemble.diverged
    return {
        "steps": run.steps,
        "rows": columns(list(measures)),
        "diverged": 0 if lost is None else int(lost.sum()),
        "notes": list(run.ensemble.notes),
        "fit_seconds": round(run.seconds, 1),
    }


def legs_of(
    config: FeatureRuns,
    record: Record,
    spectra: Sequence[str],
    measures: Mapping[str, Measure],
    seeds: Sequence[int],
    device: torch.device,
    optional: Sequence[float] = (),
) -> list[Leg]:
    """Every spectrum at every scale; those of `optional` only if they are named."""
    return [
        Leg(
            key_of(spectrum, scale),
            partial(run_leg, config, record, spectrum, scale, measures, seeds, device),
            optional=scale not in config.scales,
        )
        for spectrum in spectra
        for scale in dict.fromkeys((*config.scales, *optional))
    ]


def as_deviations(scales: Sequence[float]) -> tuple[float, ...]:
    """The variances that `scales` mean if they are standard deviations.

    >>> as_deviations((0.01, 1.0))
    (0.0001, 1.0)
    """
    return tuple(float(f"{scale**2:.6g}") for scale in scales)


@dataclass(frozen=True, eq=False)
class Paths:
    """What was measured with one input spectrum: for every row (scales, seeds, moments); NaN where undefined."""

    steps: list[int]
    scales: tuple[float, ...]
    rows: Mapping[str, Float64[np.ndarray, "scales seeds moments"]]

    @property
    def seeds(self) -> int:
        return next(iter(self.rows.values())).shape[1]

    def since(self, name: str, first: int, last: int | None = None) -> Float64[np.ndarray, "scales seeds some"]:
        """A row at the moments from step `first` on, to step `last`."""
        at = [i for i, step in enumerate(self.steps) if step >= first and (last is None or step <= last)]
        return self.rows[name][:, :, at]

    def moved(self, name: str) -> Float64[np.ndarray, "scales seeds some"]:
        """From the first measurement after the start on, where the centred forms are defined."""
        return self.rows[name][:, :, 1:]

    def of_scale(self, scale: float) -> int:
        return self.scales.index(scale)


def missing(config: FeatureRuns, record: Record, spectra: Sequence[str]) -> tuple[str, ...]:
    keys = [key_of(spectrum, scale) for spectrum in spectra for scale in config.scales]
    return tuple(key for key in keys if key not in record.metrics)


def paths_of(scales: Sequence[float], record: Record, spectrum: str) -> Paths:
    """The paths of one spectrum at those of `scales` that the record has."""
    there = [scale for scale in scales if key_of(spectrum, scale) in record.metrics]
    first = record.metrics[key_of(spectrum, there[0])]
    stacked = np.stack([np.asarray(record.arrays[array_of(spectrum, scale)], dtype=np.float64) for scale in there])
    rows = {name: stacked[:, i] for i, name in enumerate(first["rows"])}
    return Paths(list(first["steps"]), tuple(there), rows)

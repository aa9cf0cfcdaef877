"""The runs of Figures 2, 4, 5, 7 and 8 of the feature-ansatz paper: one leg per input spectrum and initial scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64

from ntkscope.core import Record
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, PARTS, SPECTRA, ChainTask, Measure, follow
from ntkscope_papers.framework import Experiment, Run, drawing, leg

INTERVALS = "mean over seeds, then its 95 % interval"


@dataclass(frozen=True)
class FeatureRuns(Experiment):
    """`measures` of both layers through training, for inputs of several `spectra` and several initial scales.

    `scales` are variances of the first layer's weights times the input dimension; `lr` is of ½·MSE, full batches.
    """

    free = ("seeds", "test_items")
    spectra: ClassVar[Sequence[str]]
    measures: ClassVar[Mapping[str, Measure]]

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

    smoke = {
        "items": 64,
        "dimension": 10,
        "width": 32,
        "test_items": 64,
        "scales": (0.01, 0.1, 1.0),
        "steps": 200,
        "seeds": 2,
    }

    def task(self, spectrum: str) -> ChainTask:
        return ChainTask(
            self.items, self.dimension, self.width, self.rank, test_items=self.test_items, decay=SPECTRA[spectrum]
        )

    def seeds_from(self, first: int) -> list[int]:
        return list(range(first, first + self.seeds))

    @leg("{}/s{:g}", over=lambda self: product(self.spectra, self.scales))
    def path(self, run: Run, spectrum: str, scale: float, arm: str = "", lr: float = 0.0) -> dict[str, Any]:
        """Train, at the rate of the settings or `lr`, and keep the paths (rows, seeds, moments) as an array."""
        task, seeds, lr, device = self.task(spectrum), self.seeds_from(run.seed), lr or self.lr, run.device
        followed = follow(task, scale, seeds, self.measures, lr=lr, steps=self.steps, every=self.every, device=device)
        rows = [followed.values[name][:, :, place] for name in self.measures for place in range(len(LAYERS))]
        rows += [followed.losses[part] for part in PARTS]
        run.record.array(array_of(arm + spectrum, scale), np.stack(rows))
        lost = followed.ensemble.diverged
        return {
            "steps": followed.steps,
            "rows": columns(self.measures),
            "diverged": 0 if lost is None else int(lost.sum()),
            "notes": list(followed.ensemble.notes),
            "fit_seconds": round(followed.seconds, 1),
        }

    def paths(self, record: Record, spectra: Sequence[str]) -> Iterator[tuple[str, Paths]]:
        """Of those spectra of which the record has any."""
        for spectrum in spectra:
            if any(key_of(spectrum, scale) in record.metrics for scale in self.scales):
                yield spectrum, paths_of(self.scales, record, spectrum)


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
    return f"path-{spectrum}-s{scale:g}".replace(".", "_").replace("/", "-")


def columns(measures: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """What the rows of such an array are, in order."""
    return [f"{name} {layer}" for name in measures for layer in LAYERS] + [f"{part} loss" for part in PARTS]


def every_scale(*spectra: str) -> Callable[[FeatureRuns], list[str]]:
    """The legs of these spectra, as a claim needs them."""
    return lambda config: [key_of(*case) for case in product(spectra, config.scales)]


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths of one spectrum by name, (scales, seeds, moments); NaN where undefined."""

    steps: list[int]
    scales: tuple[float, ...]
    rows: Mapping[str, Float64[np.ndarray, "scales seeds moments"]]

    @property
    def seeds(self) -> int:
        return next(iter(self.rows.values())).shape[1]

    def between(self, name: str, first: int, last: int) -> Float64[np.ndarray, "scales seeds some"]:
        """A row at the moments from step `first` to step `last`."""
        return self.rows[name][:, :, [i for i, step in enumerate(self.steps) if first <= step <= last]]

    def moved(self, name: str) -> Float64[np.ndarray, "scales seeds some"]:
        """From the first measurement after the start on, where the centred forms are defined."""
        return self.rows[name][:, :, 1:]

    def final(self, name: str) -> Float64[np.ndarray, "scales seeds"]:
        return self.rows[name][:, :, -1]

    def draw(self, axis: Any, values: Float64[np.ndarray, "scales seeds moments"]) -> None:
        """One line per scale with a band of one standard error over seeds."""
        for i, scale in enumerate(self.scales):
            mean = values[i].mean(0)
            error = values[i].std(0, ddof=1) / len(values[i]) ** 0.5 if len(values[i]) > 1 else np.zeros_like(mean)
            colour = drawing.COLOURS[i % len(drawing.COLOURS)]
            axis.plot(self.steps, mean, color=colour, linewidth=1.2, label=f"s = {scale:g}")
            axis.fill_between(self.steps, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def paths_of(scales: Sequence[float], record: Record, spectrum: str) -> Paths:
    """The paths of one spectrum at those of `scales` that the record has."""
    there = [scale for scale in scales if key_of(spectrum, scale) in record.metrics]
    first = record.metrics[key_of(spectrum, there[0])]
    stacked = np.stack([np.asarray(record.arrays[array_of(spectrum, scale)], dtype=np.float64) for scale in there])
    rows = {name: stacked[:, i] for i, name in enumerate(first["rows"])}
    return Paths(list(first["steps"]), tuple(there), rows)

"""Wang et al., section 4.1: Lemma 4.1, Eq. 83, Theorem 4.2 and Corollary 4.3 on networks of linear width, with their errata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.framework.results import under
from ntkscope_papers.wang_2023 import lazy_claims as claims
from ntkscope_papers.wang_2023 import lazy_measurements as measurements
from ntkscope_papers.wang_2023.lazy_claims import CHANGES, NAME
from ntkscope_papers.wang_2023.two_layer import Shape

LABELS = {"weights": "W/√d", "ck": "CK", "ntk": "NTK", "ck without 1/√d": "CK without 1/√d"}


@dataclass(frozen=True)
class LazyBounds(Experiment):
    """Linear-width networks, Section 4.1: how far gradient descent moves weights and kernels, against the printed bounds.

    `sizes`: n of Lemma 4.1 and Corollary 4.3, with d = n/2 and h = 3n/4. `dimensions`: d of Eq. 83.

    `early_seeds`: networks of Lemma 4.1, the first `seeds` of which have their eigenvectors compared. `shapes`: (n, d, h) of
    Theorem 4.2. `share`: of its largest step. `factors`: steps tried for stability, in 2n/λ_max. `scale`: σ is multiplied by it
    where the printed constant of the theorem is read as α.
    """

    name = NAME
    statements = claims_of(claims)
    free = ("seeds", "early_seeds")

    sizes: tuple[int, ...] = (128, 256, 512, 1024)
    dimensions: tuple[int, ...] = (100, 200, 400, 1000)
    shapes: tuple[tuple[int, ...], ...] = ((200, 100, 150), (200, 100, 1000), (200, 400, 600))
    early_rate: float = 1.0
    early_steps: tuple[int, ...] = (1, 5)
    share: float = 0.99
    theorem_steps: int = 400
    scale: float = 3.0
    training_steps: int = 6000
    stop: float = 1e-5
    factors: tuple[float, ...] = (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 4.0, 16.0)
    stable_steps: int = 60
    seeds: int = 3
    early_seeds: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", tuple(tuple(shape) for shape in self.shapes))

    smoke = {
        "sizes": (32, 64),
        "dimensions": (20, 40),
        "shapes": ((40, 20, 30),),
        "theorem_steps": 60,
        "training_steps": 300,
        "stop": 1e-3,
        "factors": (0.5, 1.0, 2.0, 4.0),
        "stable_steps": 30,
        "seeds": 2,
        "early_seeds": 3,
    }

    def measure(self, run: Run) -> None:
        run_legs(run.record, legs(self, run.seed, run.device), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def legs(config: LazyBounds, seed: int, device: torch.device) -> list[Leg]:
    """Every measurement, cheap ones first."""
    seeds = range(seed, seed + config.seeds)
    sizes = {n: Shape.of(n // 2) for n in config.sizes}
    share: dict[str, Any] = {"share": config.share, "device": device}
    found = [Leg("constants", measurements.constants)]
    found += [Leg(f"least/{d}", partial(measurements.least, Shape.of(d), seeds, device)) for d in config.dimensions]
    for n, shape in sizes.items():
        several = range(seed, seed + config.early_seeds)
        compute = partial(
            measurements.early, shape, several, config.early_rate, config.early_steps, device, config.seeds
        )
        found.append(Leg(f"early/{n}", compute))
    for numbers in config.shapes:
        for source in ("kernel", "bound"):
            shape = Shape(*numbers)
            compute = partial(measurements.theorem, shape, seeds, source, steps=config.theorem_steps, **share)
            found.append(Leg(f"theorem/{shape}/{source}", compute))
    first = Shape(*config.shapes[0])
    found.append(
        Leg(
            "misread",
            partial(measurements.misread, first, seeds, steps=config.theorem_steps, scale=config.scale, **share),
        )
    )
    for n, shape in sizes.items():
        compute = partial(measurements.stable, shape, seeds, config.factors, steps=config.stable_steps, device=device)
        found.append(Leg(f"stable/{n}", compute))
    for n, shape in sizes.items():
        compute = partial(measurements.training, shape, seeds, steps=config.training_steps, stop=config.stop, **share)
        found.append(Leg(f"training/{n}", compute))
    return found


def draw(record: Record) -> dict[str, Any]:
    """Changes after one and more steps, after all of training, and the least eigenvalue between bound and limit."""
    figure, (early, ended, least) = drawing.canvas(1, 3, width=4.2)
    count = max(record.config["early_steps"])
    _changes(early, record, "early/", LABELS, f"t={count}", f"change after {count} steps")
    _changes(ended, record, "training/", {name: LABELS[name] for name in CHANGES}, "", "change after training")
    runs = dict(sorted((int(key), run) for key, run in under(record, "least/").items()))
    for i, (law, title) in enumerate((("sign", "v = ±1"), ("normal", "v normal"), ("uniform", "v uniform"))):
        spread = [np.ptp(run[law]) / 2 for run in runs.values()]
        drawing.line_with_errors(least, list(runs), [np.mean(run[law]) for run in runs.values()], spread, i, title)
    constants = record.metrics.get("constants", {})
    for name, style in (("bound", "--"), ("limit", ":")):
        if name in constants:
            least.axhline(constants[name], color="#555555", linestyle=style, linewidth=1, label=f"{name}, E v² = 1")
    drawing.label(least, x="d", y="least eigenvalue of the first-layer NTK")
    least.set_ylim(bottom=0)
    least.legend()
    return {"lazy": figure}


def _changes(axis: Any, record: Record, prefix: str, names: dict[str, str], within: str, label: str) -> None:
    runs = dict(sorted((int(key), run) for key, run in under(record, prefix).items()))
    for i, (name, title) in enumerate(names.items()):
        values = [np.mean((run[within] if within else run)[name]) for run in runs.values()]
        if values:
            axis.loglog(list(runs), values, "o-", color=drawing.COLOURS[i], markersize=4, linewidth=1.2, label=title)
            if i == 0 and within:
                drawing.power_law(axis, list(runs), values[0], -1, "1/n")
    axis.set_xticks(list(runs), [str(n) for n in runs])
    axis.minorticks_off()
    drawing.label(axis, x="n", y=label)
    if axis.get_legend_handles_labels()[0]:
        axis.legend()

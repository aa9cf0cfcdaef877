"""Networks in training and the kernel machines of their tangents on the way: everything on one axis of moments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor, nn

from ntkscope import training
from ntkscope.core import Snapshot, Split
from ntkscope_papers.balakrishnan_2023.alignment.stacked_ridge import ridge_fits
from ntkscope_papers.balakrishnan_2023.alignment.stacked_tangents import StackedReLU, against_engine, centred_alignments
from ntkscope_papers.balakrishnan_2023.alignment.tasks import (
    PARTS,
    Polynomial,
    Task,
    network,
    rates,
    recipe,
    splits_of,
    stacked,
)
from ntkscope_papers.framework import Run
from ntkscope_papers.framework.legs import showing

PROBE = 32  # inputs on which stacked kernels are held to the engine
FLAT = 1e-3  # predictions that vary less than this, relative to the targets, are constant: they correlate with nothing


@dataclass(frozen=True, eq=False)
class Path:
    """Series of every member (rates times seeds, seeds fastest) at `times`, in epochs; NaN where nothing was measured.

    Kernel machines are those of the first rate's members. `finals`: predictions of the trained networks on the test points.
    """

    times: Float64[np.ndarray, " t"]
    seeds: int
    rates: tuple[float, ...]
    losses: Float64[np.ndarray, "members t"]
    alignments: Float64[np.ndarray, "members t"]
    cosines: Float32[np.ndarray, "members t width"] | None
    ending: Float32[np.ndarray, "members width"] | None
    predictions: Float64[np.ndarray, "seeds t test"] | None
    strengths: Float64[np.ndarray, "seeds t"] | None
    whole: Whole
    finals: Float64[np.ndarray, "members test"]
    at_end: Float64[np.ndarray, "seeds test"] | None
    targets: Float64[np.ndarray, "seeds test"]
    hidden: Float64[np.ndarray, "seeds test"] | None
    trained: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Whole:
    """What kernel machines on many more points say, at whole epochs and (last) at the end."""

    times: list[float] = field(default_factory=list)
    predictions: list[Float64[np.ndarray, "seeds test"]] = field(default_factory=list)
    alignments: list[list[float]] = field(default_factory=list)


def moments_of(config: Any, per_epoch: int) -> list[int]:
    """Steps: `config.moments` an epoch for `config.followed` epochs, then one an epoch up to `config.watched`.

    >>> from types import SimpleNamespace
    >>> moments_of(SimpleNamespace(moments=2, followed=2, watched=4), 10)
    [0, 5, 10, 15, 20, 30, 40]
    """
    close = {round(per_epoch * k / config.moments) for k in range(config.moments * config.followed + 1)}
    return sorted(close | {per_epoch * epoch for epoch in range(config.followed, config.watched + 1)})


class Follower:
    """Measures stacked networks at the moments of their training."""

    def __init__(
        self, config: Any, one: Task, splits: Sequence[Split], template: nn.Module, device: torch.device
    ) -> None:
        self.config, self.one, self.device, self.template = config, one, device, template
        self.x = {part: stacked(splits, part, "x", device) for part in PARTS}
        self.y = {part: stacked(splits, part, "y", device).expand(len(splits), -1) for part in PARTS}
        self.seeds, self.copies = len(splits), len(rates(config, one))
        self.near, self.far = (self._some(count) for count in (config.points, config.most_points))
        self.direction: Tensor | None = None
        if isinstance(one, Polynomial):
            w = splits[0].extras["direction"].to(device, torch.float64)
            self.direction = w / w.norm()
        self.times: list[float] = []
        self.rows: dict[str, list[Any]] = {
            name: [] for name in ("loss", "alignment", "cosine", "prediction", "strength")
        }
        self.whole = Whole()
        self.engine: list[float] = []

    def _some(self, count: int) -> tuple[Tensor, Tensor]:
        """So many training points, spread over all, whose order says nothing: drawn, or images as they were collected."""
        n = self.x["train"].shape[1]
        points = torch.linspace(0, n - 1, min(count, n), dtype=torch.float64).round().long().to(self.device)
        return self.x["train"][:, points], self.y["train"][:, points]

    @torch.no_grad()
    def look(self, epoch: float, params: Any) -> None:
        """One moment."""
        stack = StackedReLU.of(self.template, params)
        self.times.append(epoch)
        self.rows["loss"].append(self._losses(stack))
        self.rows["cosine"].append(self.cosines(stack))
        alignments, fits = self._kernels(stack)
        self.rows["alignment"].append(alignments)
        if fits is not None:
            self.rows["prediction"].append(fits[0])
            self.rows["strength"].append(fits[1])
        if epoch in (0.0, 1.0):
            self.engine.append(self._held_to_engine(params))
        if self.one.fitted and epoch == round(epoch) and epoch <= self.config.followed:
            assert fits is not None
            self.many_points(stack, epoch, fits[1])

    def _held_to_engine(self, params: Any) -> float:
        member = self.seeds - 1
        x = self.x["train"][member if len(self.x["train"]) > 1 else 0, :PROBE]
        with torch.enable_grad():
            return against_engine(copy.deepcopy(self.template), params, member, x)

    def of_rate(self, stack: StackedReLU) -> list[StackedReLU]:
        """The networks of each rate."""
        return [stack.take(slice(r * self.seeds, (r + 1) * self.seeds)) for r in range(self.copies)]

    def _losses(self, stack: StackedReLU) -> Float64[np.ndarray, " members"]:
        found = []
        for part in self.of_rate(stack):
            error = part.outputs(self.x["train"]) - self.y["train"]
            each = error.abs() if isinstance(self.one, Polynomial) else error.square()
            found.append(each.mean(-1))
        return torch.cat(found).cpu().numpy()

    def cosines(self, stack: StackedReLU) -> Float32[np.ndarray, "members width"] | None:
        """Of every unit's incoming weights with the hidden direction."""
        if self.direction is None:
            return None
        W = stack.weights[0]
        return (W @ self.direction / W.norm(dim=-1).clamp_min(1e-300)).float().cpu().numpy()

    def _kernels(self, stack: StackedReLU) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
        """Alignments of all members, and the kernel machines of the first rate's, on the chosen points."""
        x, y = self.near
        alignments, fits = [], None
        for place, part in enumerate(self.of_rate(stack)):
            K = part.kernel(x)
            alignments.append(centred_alignments(K, y))
            if place == 0 and self.one.fitted:
                fits = self.machines(part, K, x, y)
        return torch.cat(alignments).cpu().numpy(), fits

    def machines(self, stack: StackedReLU, K: Tensor, x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Predictions of every member's tangent machine on its test points, and the strengths chosen on validation."""
        held = stack.kernel(self.x["validation"], x), self.y["validation"]
        fitted = ridge_fits(K, y, held, stack.kernel(self.x["test"], x), self.config.strengths)
        chosen = np.array(self.config.strengths)[fitted.chosen.cpu().numpy()]
        return fitted.predictions.cpu().numpy(), chosen

    def many_points(self, stack: StackedReLU, epoch: float, strengths: np.ndarray) -> None:
        """The same on many more points, one member at a time, at the strengths next to those chosen on fewer."""
        grid = list(self.config.strengths)
        inputs = {**self.x, "train": self.far[0]}
        targets = {**self.y, "train": self.far[1]}
        predictions, alignments = [], []
        for i in range(self.seeds):
            one = stack.take(slice(i, i + 1))
            own = {part: value[i : i + 1] if len(value) > 1 else value for part, value in inputs.items()}
            y = {part: value[i : i + 1] for part, value in targets.items()}
            K = one.kernel(own["train"])
            alignments.append(float(centred_alignments(K, y["train"])))
            held = one.kernel(own["validation"], own["train"]), y["validation"]
            test = one.kernel(own["test"], own["train"])
            place = grid.index(float(strengths[i]))
            fitted = ridge_fits(K, y["train"], held, test, grid[max(0, place - 1) : place + 2])
            predictions.append(fitted.predictions[0].cpu().numpy())
        self.whole.times.append(epoch)
        self.whole.predictions.append(np.stack(predictions))
        self.whole.alignments.append(alignments)


def follow(config: Any, run: Run, one: Task) -> Path:
    """Train one network per rate and seed, stacked in one call, and measure them on the way and at the end.

    A member comes back as it was after its best epoch on the validation points, at most `config.epochs`.
    """
    seeds, device = range(run.seed, run.seed + config.seeds), run.device
    splits = splits_of(config, one, seeds, run.root)
    dimension = splits[0].train.x.shape[1]
    build = partial(network, config, one, dimension)
    template = build(0).to(device)
    follower = Follower(config, one, splits, template, device)
    own_rates = rates(config, one)
    per_epoch = -(-len(splits[0].train) // config.batch)
    wanted = moments_of(config, per_epoch)

    def watch(snapshot: Snapshot) -> None:
        if snapshot.step in wanted:
            follower.look(snapshot.step / per_epoch, snapshot.params)

    ensemble = training.fit_ensemble(
        build,
        [split.train for split in splits] * len(own_rates),
        seeds=list(seeds) * len(own_rates),
        lr=[rate for rate in own_rates for _ in seeds],
        validation=[split.validation for split in splits if split.validation is not None] * len(own_rates),
        diverged="nan",
        snapshots=wanted,
        on_snapshot=watch,
        device=device,
        progress=showing(),
        **recipe(config, one),
    )
    with torch.no_grad():
        return _ended(follower, StackedReLU.of(template, ensemble.params), ensemble, splits)


def _ended(f: Follower, stack: StackedReLU, ensemble: training.Ensemble, splits: Sequence[Split]) -> Path:
    """What was measured, with the trained networks and their kernel machines."""
    copies = f.of_rate(stack)
    finals = torch.cat([part.outputs(f.x["test"]) for part in copies]).cpu().numpy()
    at_end = None
    if f.one.fitted:
        x, y = f.near
        at_end, strengths = f.machines(copies[0], copies[0].kernel(x), x, y)
        f.many_points(copies[0], float("inf"), strengths)
    hidden = None
    if isinstance(f.one, Polynomial):
        hidden = np.stack([split.test.extras["v"].double().numpy() for split in splits])
    lost = ensemble.diverged
    per_epoch = -(-f.x["train"].shape[1] // f.config.batch)
    return Path(
        np.array(f.times),
        f.seeds,
        rates(f.config, f.one),
        np.stack(f.rows["loss"], axis=1),
        np.stack(f.rows["alignment"], axis=1),
        None if f.direction is None else np.stack(f.rows["cosine"], axis=1),
        f.cosines(stack),
        np.stack(f.rows["prediction"], axis=1) if f.one.fitted else None,
        np.stack(f.rows["strength"], axis=1) if f.one.fitted else None,
        f.whole,
        finals,
        at_end,
        f.y["test"].cpu().numpy(),
        hidden,
        {
            "best epochs": [round(int(step) / per_epoch, 2) for step in ensemble.steps],
            "diverged": 0 if lost is None else int(lost.sum()),
            "from the engine": max(f.engine, default=None),
            "notes": list(ensemble.notes),
        },
    )

"""Networks in training and the kernel machines of their tangents on the way: everything on one axis of moments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor, nn

from ntkscope import training
from ntkscope.core import Snapshot, Split
from ntkscope_papers.balakrishnan_2023.alignment.stacked import (
    StackedReLU,
    against_engine,
    centred_alignments,
    ridge_fits,
)
from ntkscope_papers.balakrishnan_2023.alignment.tasks import PARTS, Polynomial, Task, stacked
from ntkscope_papers.framework import Run
from ntkscope_papers.framework.legs import showing

PROBE = 32  # inputs on which stacked kernels are held to the engine
FLAT = 1e-3  # predictions that vary less than this, relative to the targets, are constant: they correlate with nothing


@dataclass(frozen=True, eq=False)
class Path:
    """Series of every member (rates times seeds, seeds fastest) at `times`, in epochs; NaN where nothing was measured.

    Cosines and predictions have one more column, of the trained networks. Kernel machines are those of the first rate's
    members; `more`: predictions and alignments of those on many more points, at whole epochs and at the end. `finals`:
    predictions of the trained networks on the test points.
    """

    times: Float64[np.ndarray, " t"]
    seeds: int
    rates: tuple[float, ...]
    losses: Float64[np.ndarray, "members t"]
    alignments: Float64[np.ndarray, "members t"]
    cosines: Float32[np.ndarray, "members t+1 width"] | None
    predictions: Float64[np.ndarray, "seeds t+1 test"] | None
    strengths: Float64[np.ndarray, "seeds t"] | None
    more: dict[str, tuple[Float64[np.ndarray, "seeds test"], list[float]]]
    finals: Float64[np.ndarray, "members test"]
    targets: Float64[np.ndarray, "seeds test"]
    hidden: Float64[np.ndarray, "seeds test"] | None
    trained: dict[str, Any]


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
        self.config, self.one, self.template = config, one, template
        self.x = {part: stacked(splits, part, "x", device) for part in PARTS}
        self.y = {part: stacked(splits, part, "y", device).expand(len(splits), -1) for part in PARTS}
        self.seeds, self.rates = len(splits), one.rates(config)
        self.near, self.far = (self._some(count) for count in (config.points, config.most_points))
        self.direction: Tensor | None = None
        if isinstance(one, Polynomial):
            w = torch.ones(config.dimension, dtype=torch.float64, device=device)
            self.direction = w / w.norm()
        self.times: list[float] = []
        self.rows: dict[str, list[Any]] = {name: [] for name in ("loss", "alignment", "cosine", "machine", "strength")}
        self.more: dict[str, tuple[np.ndarray, list[float]]] = {}
        self.engine: list[float] = []

    def _some(self, count: int) -> tuple[Tensor, Tensor]:
        """So many training points, spread over all, whose order says nothing: drawn, or images as they were collected."""
        x, y = self.x["train"], self.y["train"]
        points = torch.linspace(0, x.shape[1] - 1, min(count, x.shape[1]), dtype=torch.float64).round().long()
        return x[:, points.to(x.device)], y[:, points.to(x.device)]

    @torch.no_grad()
    def look(self, epoch: float, params: Any) -> None:
        """One moment."""
        stack = StackedReLU.of(self.template, params)
        copies = self._by_rate(stack)
        self.times.append(epoch)
        errors = torch.cat([part.outputs(self.x["train"]) - self.y["train"] for part in copies])
        losses = errors.abs() if isinstance(self.one, Polynomial) else errors.square()
        self.rows["loss"].append(losses.mean(-1).cpu().numpy())
        self._turn(stack)
        x, y = self.near
        kernels = [part.kernel(x) for part in copies]
        self.rows["alignment"].append(torch.cat([centred_alignments(K, y) for K in kernels]).cpu().numpy())
        if epoch in (0.0, 1.0):
            self.engine.append(self._held_to_engine(params))
        if self.one.fitted:
            strengths = self._machines(copies[0], kernels[0])
            self.rows["strength"].append(strengths)
            if epoch == round(epoch) and epoch <= self.config.followed:
                self._many_points(copies[0], f"{epoch:g}", strengths)

    def _by_rate(self, stack: StackedReLU) -> list[StackedReLU]:
        return [stack.take(slice(r * self.seeds, (r + 1) * self.seeds)) for r in range(len(self.rates))]

    def _held_to_engine(self, params: Any) -> float:
        member = self.seeds - 1
        x = self.x["train"][member if len(self.x["train"]) > 1 else 0, :PROBE]
        with torch.enable_grad():
            return against_engine(copy.deepcopy(self.template), params, member, x)

    def _turn(self, stack: StackedReLU) -> None:
        """Cosines of every unit's incoming weights with the hidden direction."""
        if self.direction is not None:
            W = stack.weights[0]
            found = W @ self.direction / W.norm(dim=-1).clamp_min(1e-300)
            self.rows["cosine"].append(found.float().cpu().numpy())

    def _machines(self, stack: StackedReLU, K: Tensor) -> np.ndarray:
        """Every member's tangent machine on its test points; the strengths chosen on validation points are returned."""
        x, y = self.near
        held = stack.kernel(self.x["validation"], x), self.y["validation"]
        fitted = ridge_fits(K, y, held, stack.kernel(self.x["test"], x), self.config.strengths)
        self.rows["machine"].append(fitted.predictions.cpu().numpy())
        chosen: np.ndarray = np.array(self.config.strengths)[fitted.chosen.cpu().numpy()]
        return chosen

    def _many_points(self, stack: StackedReLU, when: str, strengths: np.ndarray) -> None:
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
        self.more[when] = np.stack(predictions), alignments

    @torch.no_grad()
    def ended(self, ensemble: training.ensembles.ensemble.Ensemble, splits: Sequence[Split]) -> Path:
        """What was measured, with the trained networks and their kernel machines."""
        stack = StackedReLU.of(self.template, ensemble.params)
        copies = self._by_rate(stack)
        self._turn(stack)
        if self.one.fitted:
            K = copies[0].kernel(self.near[0])
            self._many_points(copies[0], "end", self._machines(copies[0], K))
        hidden = None
        if isinstance(self.one, Polynomial):
            hidden = np.stack([split.test.extras["v"].double().numpy() for split in splits])
        per_epoch = -(-self.x["train"].shape[1] // self.config.batch)
        series = {name: np.stack(rows, axis=1) if rows else None for name, rows in self.rows.items()}
        assert series["loss"] is not None
        assert series["alignment"] is not None
        return Path(
            np.array(self.times),
            self.seeds,
            self.rates,
            series["loss"],
            series["alignment"],
            series["cosine"],
            series["machine"],
            series["strength"],
            self.more,
            torch.cat([part.outputs(self.x["test"]) for part in copies]).cpu().numpy(),
            self.y["test"].cpu().numpy(),
            hidden,
            {
                "best epochs": [round(int(step) / per_epoch, 2) for step in ensemble.steps],
                "diverged": 0 if ensemble.diverged is None else int(ensemble.diverged.sum()),
                "from the engine": max(self.engine, default=None),
                "notes": list(ensemble.notes),
            },
        )


def follow(config: Any, run: Run, one: Task) -> Path:
    """Train one network per rate and seed, stacked in one call, and measure them on the way and at the end.

    A member comes back as it was after its best epoch on the validation points, at most `config.epochs`.
    """
    seeds = range(run.seed, run.seed + config.seeds)
    splits = one.splits(config, seeds, run.root)
    build = partial(one.network, config, splits[0].train.x.shape[1])
    follower = Follower(config, one, splits, build(0).to(run.device), run.device)
    per_epoch = -(-len(splits[0].train) // config.batch)
    wanted = moments_of(config, per_epoch)

    def watch(snapshot: Snapshot) -> None:
        if snapshot.step in wanted:
            follower.look(snapshot.step / per_epoch, snapshot.params)

    several = len(follower.rates)
    ensemble = training.fit_ensemble(
        build,
        [split.train for split in splits] * several,
        seeds=list(seeds) * several,
        lr=[rate for rate in follower.rates for _ in seeds],
        validation=[split.validation for split in splits if split.validation is not None] * several,
        diverged="nan",
        snapshots=wanted,
        on_snapshot=watch,
        device=run.device,
        progress=showing(),
        **one.recipe,
        batch_size=config.batch,
        epochs=config.epochs,
        patience=config.patience,
    )
    return follower.ended(ensemble, splits)

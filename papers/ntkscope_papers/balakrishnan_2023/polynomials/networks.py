"""Networks with one hidden ReLU layer on polynomials of a hidden direction: all tasks and seeds of a width in one call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.polynomial import Chebyshev
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import Params, Snapshot
from ntkscope.kernels import Tangent
from ntkscope.measures.regression import r_squared
from ntkscope.training import fit_ensemble
from ntkscope.training.modes import Phase
from ntkscope_papers.balakrishnan_2023.polynomials.data import PARTS, Inputs, Task
from ntkscope_papers.framework import Experiment, Run
from ntkscope_papers.framework.legs import showing
from ntkscope_papers.shared.networks import keep_mark, mark_of_weights, refuse_another, weights_file

ALIGNED = 0.7  # |cos| with the hidden direction from which on a unit counts as aligned
FIRST, BIAS, LAST = "layer1.weight", "layer1.bias", "readout.weight"
CURVES = "curves."  # what a file holds besides weights begins with this
WATCHED = ("epochs", "moments", "aligned", "largest", "changes")
OPTIMIZER, LOSS = "adadelta", "l1"


def network(features: int, width: int, seed: int, *, symmetric: bool = False, mirrored: bool = False) -> nn.Module:
    """One hidden ReLU layer, PyTorch's own start; `symmetric`: units in pairs with opposite readouts; `mirrored`: units in
    pairs with opposite weights and biases, readouts as they are."""
    model = models.build("mlp", in_features=features, widths=[width], symmetric=symmetric, seed=seed)
    with torch.no_grad():
        for name in (FIRST, BIAS) if mirrored else ():
            one = model.get_parameter(name)
            one[width // 2 :] = -one[: width // 2]
    return model


@dataclass(frozen=True)
class Recipe:
    """How networks are made and trained: `follow` first epochs have their alignment measured; labels with `noise`, ±; units in
    pairs (`symmetric`); which layers learn when (`mode`); and with `decay`, of the weights, the rest of the public code: units
    with opposite weights at the start, and the weights of the last epoch, not of the best."""

    width: int
    rate: float = 1.0
    follow: int = 20
    noise: float = 0.0
    symmetric: bool = False
    mode: tuple[Phase, ...] | None = None
    decay: float | None = None


@dataclass(frozen=True, eq=False)
class Trained:
    """Stacked weights of tasks × seeds (seeds of a task side by side) after each one's best epoch on validation items.

    `aligned` and `largest` (members, moments + 1): the share of units with |cos| ≥ 0.7 and the largest |cos| at `moments`, the
    ends of the first epochs and the last update; one more column is of the weights returned. `changes` (members, 3): largest
    change of a first-layer weight and of a first-layer bias after epoch 1, and of a readout weight in epoch 1.
    """

    params: Params
    epochs: Float64[Tensor, " k"]
    moments: tuple[float, ...]
    aligned: Float[Tensor, "k columns"]
    largest: Float[Tensor, "k columns"]
    changes: Float[Tensor, "k 3"]
    notes: tuple[str, ...] = ()

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        curves = {name: getattr(self, name) for name in WATCHED}
        curves["moments"] = torch.tensor(self.moments, dtype=torch.float64)
        models.save_tensors({**self.params, **{CURVES + name: value for name, value in curves.items()}}, path)

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Trained:
        stored = dict(models.read_weights(path))
        curves: dict[str, Any] = {name: stored.pop(CURVES + name) for name in WATCHED}
        curves["moments"] = tuple(curves["moments"].tolist())
        return cls({name: value.to(device) for name, value in stored.items()}, **curves)

    def mark(self) -> str:
        """By which these networks are told from others."""
        return mark_of_weights(self.params)

    def member(self, i: int, model: nn.Module) -> nn.Module:
        """`model` with the weights of member i, in place."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.params[name][i])
        return model


def cosines(weight: Float[Tensor, "k h d"]) -> Float[Tensor, "k h"]:
    """|cos| of every unit's incoming weights with the all-ones direction; 0 for a unit without weights."""
    long = weight.double()  # squares of weights that decayed are beyond single precision
    norms = long.norm(dim=2) * math.sqrt(weight.shape[2])
    return (long.sum(2).abs() / norms.clamp_min(torch.finfo(long.dtype).tiny)).to(weight.dtype)


class _Watch:
    """What is measured of the stacked weights while they train."""

    def __init__(self) -> None:
        self.seen: list[Float[Tensor, "2 k"]] = []
        self.moments: list[float] = []
        self._start: Tensor | None = None
        self._first: tuple[Tensor, Tensor] | None = None
        self.changes = torch.zeros(3, 1)

    def __call__(self, snapshot: Snapshot) -> None:
        params = {name: snapshot.params[name].detach() for name in (FIRST, BIAS, LAST)}
        self.look(params[FIRST])
        self.moments.append(snapshot.epoch)
        if snapshot.epoch == 0:
            self._start = params[LAST].clone()
        elif self._first is None:
            assert self._start is not None
            self._first = params[FIRST].clone(), params[BIAS].clone()
            moved = _largest(params[LAST] - self._start)
            self.changes = torch.stack([torch.zeros_like(moved), torch.zeros_like(moved), moved])
        else:
            for i, (name, before) in enumerate(zip((FIRST, BIAS), self._first)):
                self.changes[i] = torch.maximum(self.changes[i], _largest(params[name] - before))

    def look(self, weight: Float[Tensor, "k h d"]) -> None:
        found = cosines(weight)
        self.seen.append(torch.stack([(found >= ALIGNED).to(found.dtype).mean(1), found.amax(1)]).cpu())


def _largest(change: Tensor) -> Float[Tensor, " k"]:
    return change.abs().flatten(1).amax(1).cpu()


@dataclass(frozen=True)
class PolynomialRuns(Experiment):
    """What both experiments on hidden polynomials share: data, training, the grids of kernel machines.

    Sizes, epochs and batches are those of the report's public code; the text leaves them open.

    `rates`: AdaDelta's learning rates; width and rate are chosen for each task by the mean validation MSE over seeds.
    `kernel_seeds`: how many seeds the kernel machines are fitted for. `C` and `gammas` (in units of 1 / (d var x)) are chosen
    by the validation MSE of fits on `select_items` training items. `epsilon`: of the SVRs.
    """

    free = ("seeds", "kernel_seeds", "memory")

    roots: str = "equispaced"
    dimension: int = 100
    train: int = 8000
    validation: int = 1000
    test: int = 1000
    epochs: int = 500
    patience: int = 50
    batch: int = 32
    seeds: int = 10
    kernel_seeds: int = 3
    C: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
    gammas: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    epsilon: float = 0.01
    select_items: int = 2000
    memory: str = "32GiB"

    smoke = {
        **{"dimension": 10, "train": 96, "validation": 32, "test": 48, "epochs": 3, "batch": 16, "seeds": 2},
        **{"kernel_seeds": 1, "C": (1.0, 100.0), "gammas": (1.0,), "select_items": 48, "memory": "1GiB"},
    }

    def prepare(self, run: Run) -> Inputs:
        return Inputs(self, run.seed)

    def trained(self, run: Run, key: str, tasks: Sequence[Task], recipe: Recipe) -> Trained:
        """The networks of `key`, read from the record's folder; trained and written there if they are not."""
        path = weights_file(run.record, key)
        if not path.exists():
            networks = self.fit(run, tasks, recipe)
            refuse_another(run.record, key, networks.mark())
            if networks.notes:  # before the weights: a run killed between the two trains again, and no notes are lost
                run.record.put(**{f"notes/{key}": list(networks.notes)})
            networks.save(path)
        found = Trained.load(path, run.device)
        keep_mark(run.record, key, found.mark())
        return found

    def fit(self, run: Run, tasks: Sequence[Task], recipe: Recipe) -> Trained:
        """Every task for every seed, stacked; AdaDelta on the L1 loss, the best epoch by the L1 loss of validation items."""
        members = [(task, s) for task in tasks for s in range(self.seeds)]
        parts = [run.data.parts(task, s, recipe.noise) for task, s in members]
        features = parts[0]["train"].x.shape[1]
        per_epoch = math.ceil(self.train / self.batch)
        watch, authors = _Watch(), recipe.decay is not None
        ensemble = fit_ensemble(
            lambda each: network(features, recipe.width, each, symmetric=recipe.symmetric, mirrored=authors),
            [part["train"] for part in parts],
            seeds=[run.seed + s for _, s in members],
            validation=[part["validation"] for part in parts],
            patience=self.patience,
            restore=not authors,
            min_delta=1e-4 if authors else 0.0,
            weight_decay=recipe.decay or 0.0,
            optimizer=OPTIMIZER,
            loss=LOSS,
            lr=recipe.rate,
            epochs=self.epochs,
            batch_size=self.batch,
            mode=recipe.mode,
            device=run.device,
            snapshots=[per_epoch * epoch for epoch in range(min(recipe.follow, self.epochs) + 1)],
            on_snapshot=watch,
            progress=showing(),
        )
        watch.look(ensemble.params[FIRST].detach())
        curves = torch.stack(watch.seen, dim=2)
        return Trained(
            {name: value.detach() for name, value in ensemble.params.items()},
            ensemble.steps.double() / per_epoch,
            tuple(watch.moments),
            curves[0],
            curves[1],
            watch.changes.T.contiguous(),
            ensemble.notes,
        )

    def member_scores(self, run: Run, found: Trained, tasks: Sequence[Task]) -> dict[str, Any]:
        """By task: scores and best epochs over seeds, and how units aligned."""
        told: dict[str, Any] = {}
        for t, task in enumerate(tasks):
            rows, these = [], list(range(t * self.seeds, (t + 1) * self.seeds))
            for s, i in enumerate(these):
                drawn = run.data.draw(task.kind, s)
                predicted = {name: outputs(found.params, i, drawn.part(name, task).x).numpy() for name in PARTS}
                targets = {name: drawn.clean(name, task).numpy() for name in PARTS}
                own = scores(predicted, targets, drawn.v["test"].numpy(), task.degree)
                rows.append({**own, "epochs": float(found.epochs[i])})
            told[task.key] = columns(rows)
            if task.kind != "direct":
                told[task.key]["aligned"] = np.round(found.aligned[these].double().numpy(), 4).tolist()
                told[task.key]["largest"] = np.round(found.largest[these].double().numpy(), 4).tolist()
        return told

    def predictions(self, run: Run, found: Trained, tasks: Sequence[Task], task: Task) -> Float64[np.ndarray, "3 n"]:
        """Of the first seed on test items: v, y, and what its network of `tasks` says."""
        drawn = run.data.draw(task.kind, 0)
        predicted = outputs(found.params, tasks.index(task) * self.seeds, drawn.part("test", task).x)
        return np.stack([drawn.v["test"].numpy(), drawn.clean("test", task).numpy(), predicted.numpy()])

    def tangent(self, run: Run, width: int, **options: Any) -> Tangent:
        """Of a network of this width, whose weights change in place."""
        model = network(self.dimension, width, 0).double().to(run.device).eval()
        return Tangent(model, dtype=torch.float64, device=run.device, memory=self.memory, certify="sampled", **options)


def outputs(params: Mapping[str, Tensor], i: int, x: Float[Tensor, "n d"]) -> Float64[Tensor, " n"]:
    """Of member i, in double precision on the CPU."""
    x = x.to(params[FIRST].device)
    hidden = torch.relu(torch.addmm(params[BIAS][i], x, params[FIRST][i].T))
    found = hidden @ params[LAST][i, 0] + params["readout.bias"][i]
    return found.double().cpu()


def scores(
    predictions: Mapping[str, Float64[np.ndarray, " n"]],
    targets: Mapping[str, Float64[np.ndarray, " n"]],
    v: Float64[np.ndarray, " n"],
    degree: int,
) -> dict[str, float]:
    """MSE and R² of each part; on test items also `l1`, the share of a constant's mean absolute error that is explained (a few
    items near the ends of the range make most of the variance of high degrees), the spread of predictions over that of targets,
    and how far predictions scatter around the best polynomial of v of this degree, over the targets' standard deviation.

    >>> y = np.array([1.0, 3.0])
    >>> found = scores({"test": y + 1}, {"test": y}, np.array([0.0, 1.0]), 1)
    >>> found["mse test"], found["r2 test"], found["spread"], round(found["fuzz"], 9)
    (1.0, 0.0, 1.0, 0.0)
    """
    found: dict[str, float] = {}
    for name, predicted in predictions.items():
        found[f"mse {name}"] = float(np.square(predicted - targets[name]).mean())
        found[f"r2 {name}"] = float(r_squared(predicted, targets[name])[0])
    predicted, true = predictions["test"], targets["test"]
    std = float(true.std())
    found["l1"] = 1 - float(np.abs(predicted - true).mean() / np.abs(true - np.median(true)).mean())
    smooth = Chebyshev.fit(v, predicted, degree)(v)
    found |= {"spread": float(predicted.std()) / std, "fuzz": float((predicted - smooth).std()) / std}
    return found | {"variance": std**2}


def by_model(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """What a record keeps of several models, each measured for some seeds."""
    return {"models": {name: columns(each) for name, each in rows.items()}}


def columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Lists over seeds, to five digits.

    >>> columns([{"a": 1.0}, {"a": 1 / 3}])
    {'a': [1.0, 0.33333]}
    """
    return {name: [float(f"{row[name]:.5g}") for row in rows] for name in rows[0]}

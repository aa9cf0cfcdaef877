"""Samarin, Roth & Belius (2022), Figures 1 to 4: LeNet and its linearisation on three tasks, at growing width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import Record, Snapshot, derive_seed
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs, unfinished
from ntkscope_papers.samarin_2022 import linearized_claims as claims
from ntkscope_papers.samarin_2022.linearized_figures import draw
from ntkscope_papers.samarin_2022.linearized_identities import identities
from ntkscope_papers.samarin_2022.linearized_readings import searched
from ntkscope_papers.samarin_2022.logistic_pixels import pixel_regression
from ntkscope_papers.shared.lenet_tasks import Task, Tasks, tasks_of
from ntkscope_papers.shared.paired_training import KINDS, Recipe, Trained, one_hot, stacked_outputs, train_members
from ntkscope_papers.shared.tangent_solve import solve_tangent

MOMENTS = (0, 1, 3, 10, 30)  # epochs at which outputs are looked at, besides the last
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "double": {"double": True},
    "cross-entropy": {"loss": "cross_entropy", "lr": 0.01},  # at the squared loss's 0.1 it ends at chance
}
CROSS_RATES, CROSS_DECAYS = (0.03, 0.01, 0.003), (5e-4, 5e-5)  # where those of cross-entropy are searched for
TF32_FROM = 25  # times the width: 1e16 operations and more; the network and its linearisation round alike
WATCHED = 500  # test images whose outputs are kept


@dataclass(frozen=True)
class LinearizedLenet(Experiment):
    """Linearised CNNs, Figures 1 to 4: LeNet and its linearisation on MNIST, shifted MNIST and CIFAR-10, by width.

    `widths` of MNIST and of shifted MNIST, `colour_widths` of CIFAR-10; those in `optional` run when named. `seeds` networks
    at width 1, `wide_seeds` at others. `grid_*`: the search at width 1, scored on `validation` held-out training images.
    """

    name = "linearized-lenet"
    statements = claims_of(claims)
    free = ("seeds", "wide_seeds", "optional", "colour_optional", "lsmr_steps")

    dataset: str = "mnist"
    colour: str = "cifar10"
    enlarge: int = 1
    train_items: int | None = None
    test_items: int | None = None
    widths: tuple[int, ...] = (1, 2, 5, 10, 25)
    colour_widths: tuple[int, ...] = (1, 10)
    optional: tuple[int, ...] = (60,)
    colour_optional: tuple[int, ...] = (2, 5, 25, 60)
    seeds: int = 3
    wide_seeds: int = 1
    epochs: int = 100
    lr: float = 0.1
    weight_decay: float = 5e-5
    drop: int = 30
    grid_epochs: int = 20
    grid_lr: tuple[float, ...] = (1.0, 0.1, 0.01, 0.001)
    grid_decay: tuple[float, ...] = (5e-4, 5e-5, 5e-6, 5e-7, 5e-8)
    validation: int = 10_000
    lsmr_widths: tuple[int, ...] = (1, 5)
    lsmr_steps: int = 300
    pixel_steps: int = 100

    smoke = {
        "dataset": "digits",
        "colour": "digits",
        "enlarge": 3,
        "train_items": 96,
        "test_items": 60,
        "widths": (1,),
        "colour_widths": (1,),
        "optional": (2,),
        "colour_optional": (),
        "seeds": 2,
        "epochs": 2,
        "drop": 1,
        "grid_epochs": 1,
        "grid_lr": (0.1, 0.01),
        "grid_decay": (5e-5,),
        "validation": 32,
        "lsmr_widths": (1,),
        "lsmr_steps": 5,
        "pixel_steps": 5,
    }

    def measure(self, run: Run) -> None:
        sizes: dict[str, Any] = {"root": run.root, "train": self.train_items, "test": self.test_items, "seed": run.seed}
        known = {"mnist": (self.dataset, False), "shifted": (self.dataset, True), "cifar10": (self.colour, False)}
        tasks = tasks_of(known, enlarge=self.enlarge, **sizes)
        run_legs(
            run.record, legs(Setup(self, tasks, run.record, run.seed, run.device)), self.legs, progress=run.progress
        )

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


@dataclass(frozen=True, eq=False)
class Setup:
    """What every leg needs."""

    config: LinearizedLenet
    tasks: Tasks
    record: Record
    seed: int
    device: torch.device

    def recipe(self, task: str, **changes: Any) -> Recipe:
        """How the networks of a task are trained; the rate falls on CIFAR-10 alone."""
        drop = self.config.drop if task == "cifar10" else 0
        return replace(Recipe(self.config.epochs, self.config.lr, self.config.weight_decay, drop=drop), **changes)


def trained(setup: Setup, name: str, width: int, kind: str, variant: str = "") -> dict[str, Any]:
    """Networks of one width, or their linearisations: accuracies and the outputs' statistics over training."""
    with unfinished(setup.record, f"{variant or 'train'}/{name}/x{width}/{kind}") as store:
        return _trained(setup, name, width, kind, variant, store)


def _trained(setup: Setup, name: str, width: int, kind: str, variant: str, store: Path) -> dict[str, Any]:
    config, task = setup.config, setup.tasks(name)
    recipe = setup.recipe(
        name, tf32=width >= TF32_FROM, **{**VARIANTS[variant], **searched(setup.record, name, variant)}
    )
    count = config.seeds if width == 1 and not variant else config.wide_seeds
    seeds = [derive_seed(setup.seed, "lenet", s) for s in range(count)]
    curve: dict[str, list[dict[str, Any]]] = {}
    known = task.fixed(config.epochs)
    some = known.take(torch.arange(min(len(known), len(task.test))))

    def watch(snapshot: Snapshot, template: nn.Module, vectorised: bool) -> None:
        outputs = stacked_outputs(template, snapshot.params, snapshot.buffers, task.test.x, vectorised)
        fit = stacked_outputs(template, snapshot.params, snapshot.buffers, some.x, vectorised)
        curve[f"{snapshot.epoch:g}"] = [
            {"test": accuracy(a, task.test.y), "train": accuracy(b, some.y), **statistics(a)}
            for a, b in zip(outputs, fit)
        ]

    part = task.train if recipe.loss == "cross_entropy" else one_hot(task.train, task.classes)
    made = train_members(
        kind,
        lambda s: task.lenet(width, task.classes, s),
        part,
        recipe,
        seeds,
        augment=task.augment,
        watch=watch,
        moments=[epoch for epoch in MOMENTS if epoch < config.epochs],
        device=setup.device,
        store=store,
    )
    final = finals(made, task, known.x, known.y)
    kept = made.outputs(task.test.x[:WATCHED]).to(torch.float16)
    setup.record.array(f"outputs-{name}-x{width}-{kind}{variant and '-'}{variant}", kept)
    return {
        "runs": final,
        "curve": curve,
        "lr": recipe.lr,
        "weight_decay": recipe.weight_decay,
        "weights": made.weights,
        "batches": made.batches,
        "fit_seconds": round(made.seconds, 1),
        "notes": [*made.notes, *(["products rounded to TF32 where the device can"] * recipe.tf32)],
    }


def finals(made: Trained, task: Task, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """Accuracy and squared error of every member at the end, on all training and all test images."""
    found: list[dict[str, Any]] = [{"diverged": lost} for lost in made.diverged]
    for where, inputs, labels in (("train", x, y), ("test", task.test.x, task.test.y)):
        targets = torch.nn.functional.one_hot(labels, task.classes).double()
        for one, outputs in zip(found, made.outputs(inputs)):
            one[where] = accuracy(outputs, labels)
            one[f"{where} loss"] = float((outputs - targets).square().mean())
    return found


def accuracy(outputs: Tensor, labels: Tensor) -> float | None:
    """Percent right, None of outputs that are not finite."""
    if not bool(torch.isfinite(outputs).all()):
        return None
    return round(100 * float((outputs.argmax(1) == labels).double().mean()), 4)


def statistics(outputs: Tensor) -> dict[str, list[float]]:
    """Mean and standard deviation of each output over the test images."""
    return {
        "mean": [round(float(v), 5) for v in outputs.mean(0)],
        "std": [round(float(v), 5) for v in outputs.std(0)],
    }


def grid(setup: Setup, name: str, kind: str) -> dict[str, Any]:
    """Every rate and decay at width 1, for fewer epochs."""
    config = setup.config
    points = [(lr, decay) for lr in config.grid_lr for decay in config.grid_decay]
    return search(setup, name, kind, points, setup.recipe(name, epochs=config.grid_epochs))


def cross_grid(setup: Setup, name: str) -> dict[str, Any]:
    """Rates and decays of the network at width 1 with cross-entropy, trained to the end: it fits the images and goes on."""
    points = [(lr, decay) for lr in CROSS_RATES for decay in CROSS_DECAYS]
    return search(setup, name, "network", points, setup.recipe(name, **VARIANTS["cross-entropy"]))


def search(setup: Setup, name: str, kind: str, points: Sequence[tuple[float, float]], recipe: Recipe) -> dict[str, Any]:
    """Rates and decays, stacked: accuracy on held-out training images, test accuracy beside it."""
    config, task = setup.config, setup.tasks(name)
    held = config.validation
    inner = replace(task, train=task.train.take(torch.arange(held, len(task.train))))
    made = train_members(
        kind,
        lambda s: task.lenet(1, task.classes, s),
        inner.train if recipe.loss == "cross_entropy" else one_hot(inner.train, task.classes),
        recipe,
        [derive_seed(setup.seed, "lenet", 0)] * len(points),
        augment=task.augment,
        rates={"lr": [lr for lr, _ in points], "weight_decay": [decay for _, decay in points]},
        device=setup.device,
    )
    fixed = task.fixed(recipe.epochs)
    scores = [
        [accuracy(outputs, labels) for outputs in made.outputs(x)]
        for x, labels in ((fixed.x[:held], fixed.y[:held]), (task.test.x, task.test.y))
    ]
    return {
        "points": [
            {"lr": lr, "weight_decay": decay, "validation": validation, "test": test}
            for (lr, decay), validation, test in zip(points, *scores)
        ],
        "epochs": recipe.epochs,
        "fit_seconds": round(made.seconds, 1),
        "notes": list(made.notes),
    }


def least_squares(setup: Setup, width: int) -> dict[str, Any]:
    """The linearisation's squared error on all of MNIST by LSMR: is the optimiser or the model what limits SGD?"""
    config, task = setup.config, setup.tasks("mnist")
    model = task.lenet(width, task.classes, derive_seed(setup.seed, "lenet", 0)).to(setup.device)
    part = one_hot(task.train, task.classes).to(setup.device)
    linear, solution = solve_tangent(model, part, config.lsmr_steps)
    params = {key: value.detach()[None] for key, value in linear.named_parameters()}
    buffers = {key: value.detach()[None] for key, value in linear.named_buffers()}
    found: dict[str, Any] = {"loss": solution.loss, "iterations": solution.iterations, "norm": solution.norm}
    for where, x, y in (("train", task.train.x, task.train.y), ("test", task.test.x, task.test.y)):
        found[where] = accuracy(stacked_outputs(linear, params, buffers, x, True)[0], y)
    return found | {"rows": solution.shape[0], "parameters": solution.shape[1], "optimality": solution.optimality}


def legs(setup: Setup) -> list[Leg]:
    """Every measurement, those of most consequence first."""
    config = setup.config
    found = [
        Leg("identities", partial(identities, setup.seed)),
        Leg("pixels", lambda: pixel_regression(setup.tasks("mnist"), config.pixel_steps, setup.device)),
    ]

    def pair(name: str, width: int, optional: bool = False) -> Sequence[Leg]:
        return [
            Leg(f"train/{name}/x{width}/{kind}", partial(trained, setup, name, width, kind), optional) for kind in KINDS
        ]

    for name in ("mnist", "shifted"):
        found += [leg for width in config.widths for leg in pair(name, width)]
    found += [leg for width in config.colour_widths for leg in pair("cifar10", width)]
    for kind in KINDS:
        found.append(Leg(f"grid/mnist/{kind}", partial(grid, setup, "mnist", kind)))
    for kind in KINDS:
        found.append(Leg(f"double/mnist/{kind}", partial(trained, setup, "mnist", 1, kind, "double")))
    for name in ("mnist", "cifar10"):
        found.append(Leg(f"cross-entropy-grid/{name}", partial(cross_grid, setup, name)))
        found.append(Leg(f"cross-entropy/{name}", partial(trained, setup, name, 1, "network", "cross-entropy")))
    for width in config.lsmr_widths:
        found.append(Leg(f"lsmr/x{width}", partial(least_squares, setup, width)))
    for name, widths in (("mnist", config.optional), ("shifted", config.optional), ("cifar10", config.colour_optional)):
        found += [leg for width in widths for leg in pair(name, width, optional=True)]
    return found

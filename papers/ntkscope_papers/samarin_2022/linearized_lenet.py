"""Samarin, Roth & Belius (2022), Figures 1 to 4: LeNet and its linearisation on three tasks, at growing width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope.core import Record, Snapshot, derive_seed
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.legs import unfinished
from ntkscope_papers.framework.results import summary
from ntkscope_papers.samarin_2022 import linearized_claims as claims
from ntkscope_papers.samarin_2022 import readings as read
from ntkscope_papers.samarin_2022.linearized_claims import GAPS, TITLES
from ntkscope_papers.samarin_2022.linearized_identities import identities
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
        **{"dataset": "digits", "colour": "digits", "enlarge": 3, "train_items": 96, "test_items": 60},
        **{"widths": (1,), "colour_widths": (1,), "optional": (2,), "colour_optional": (), "seeds": 2},
        **{"epochs": 2, "drop": 1, "grid_epochs": 1, "grid_lr": (0.1, 0.01), "grid_decay": (5e-5,), "validation": 32},
        **{"lsmr_widths": (1,), "lsmr_steps": 5, "pixel_steps": 5},
    }

    def prepare(self, run: Run) -> Tasks:
        known = {"mnist": (self.dataset, False), "shifted": (self.dataset, True), "cifar10": (self.colour, False)}
        sizes: dict[str, Any] = {"train": self.train_items, "test": self.test_items, "enlarge": self.enlarge}
        return tasks_of(known, root=run.root, seed=run.seed, **sizes)

    def widths_of(self, name: str, optional: bool = False) -> tuple[int, ...]:
        """Of a task."""
        if name == "cifar10":
            return self.colour_optional if optional else self.colour_widths
        return self.optional if optional else self.widths

    @leg("identities")
    def identities(self, run: Run) -> dict[str, Any]:
        return identities(run.seed)

    @leg("pixels")
    def pixels(self, run: Run) -> dict[str, Any]:
        """Percent right of multinomial logistic regression on pixels, by L-BFGS from zero, without a penalty."""
        task = run.data("mnist")
        x, y = task.train.x.flatten(1).to(run.device, torch.float32), task.train.y.to(run.device)
        model = torch.nn.Linear(x.shape[1], task.classes).to(run.device)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        optimizer = torch.optim.LBFGS(
            model.parameters(), max_iter=self.pixel_steps, history_size=10, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = torch.nn.functional.cross_entropy(model(x), y)
            value.backward()
            return value

        optimizer.step(loss)
        found: dict[str, Any] = {"loss": float(loss().detach()), "iterations": self.pixel_steps}
        with torch.no_grad():
            for where, part in (("train", task.train), ("test", task.test)):
                right = model(part.x.flatten(1).to(run.device, torch.float32)).argmax(1).cpu() == part.y
                found[where] = round(100 * float(right.double().mean()), 4)
        return found

    @leg(
        "train/{}/x{}/{}",
        over=lambda self: (
            (name, width, kind)
            for optional, name in product((False, True), read.TASKS)
            for width, kind in product(self.widths_of(name, optional), KINDS)
        ),
        optional=lambda self, name, width, kind: width not in self.widths_of(name),
    )
    def trained(self, run: Run, name: str, width: int, kind: str, variant: str = "") -> dict[str, Any]:
        """Networks of one width, or their linearisations: accuracies and the outputs' statistics over training."""
        task = run.data(name)
        changes = {**VARIANTS[variant], **read.searched(run.record, name, variant)}
        recipe = self.recipe(name, tf32=width >= TF32_FROM, **changes)
        count = self.seeds if width == 1 and not variant else self.wide_seeds
        curve: dict[str, list[dict[str, Any]]] = {}
        known = task.fixed(self.epochs)
        some = known.take(torch.arange(min(len(known), len(task.test))))

        def watch(snapshot: Snapshot, template: nn.Module, vectorised: bool) -> None:
            outputs = stacked_outputs(template, snapshot.params, snapshot.buffers, task.test.x, vectorised)
            fit = stacked_outputs(template, snapshot.params, snapshot.buffers, some.x, vectorised)
            curve[f"{snapshot.epoch:g}"] = [
                {"test": accuracy(a, task.test.y), "train": accuracy(b, some.y), **statistics(a)}
                for a, b in zip(outputs, fit)
            ]

        with unfinished(run.record, f"{variant or 'train'}/{name}/x{width}/{kind}") as store:
            made = train_members(
                kind,
                lambda s: task.lenet(width, task.classes, s),
                task.train if recipe.loss == "cross_entropy" else one_hot(task.train, task.classes),
                recipe,
                [derive_seed(run.seed, "lenet", s) for s in range(count)],
                augment=task.augment,
                watch=watch,
                moments=[epoch for epoch in MOMENTS if epoch < self.epochs],
                device=run.device,
                store=store,
            )
            final = finals(made, task, known.x, known.y)
            kept = made.outputs(task.test.x[:WATCHED]).to(torch.float16)
            run.record.array(f"outputs-{name}-x{width}-{kind}{variant and '-'}{variant}", kept)
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

    @leg("grid/mnist/{}", over=lambda self: KINDS)
    def grid(self, run: Run, kind: str) -> dict[str, Any]:
        """Every rate and decay at width 1, for fewer epochs."""
        points = list(product(self.grid_lr, self.grid_decay))
        return self.search(run, "mnist", kind, points, self.recipe("mnist", epochs=self.grid_epochs))

    @leg("double/mnist/{}", over=lambda self: KINDS)
    def double_precision(self, run: Run, kind: str) -> dict[str, Any]:
        return self.trained(run, "mnist", 1, kind, "double")

    @leg("cross-entropy-grid/{}", over=lambda self: ("mnist", "cifar10"))
    def cross_entropy_grid(self, run: Run, name: str) -> dict[str, Any]:
        """Rates and decays of the network at width 1 with cross-entropy, trained to the end: it fits the images and goes on."""
        points = list(product(CROSS_RATES, CROSS_DECAYS))
        return self.search(run, name, "network", points, self.recipe(name, **VARIANTS["cross-entropy"]))

    @leg("cross-entropy/{}", over=lambda self: ("mnist", "cifar10"))
    def cross_entropy(self, run: Run, name: str) -> dict[str, Any]:
        return self.trained(run, name, 1, "network", "cross-entropy")

    @leg("lsmr/x{}", over=lambda self: self.lsmr_widths)
    def least_squares(self, run: Run, width: int) -> dict[str, Any]:
        """The linearisation's squared error on all of MNIST by LSMR: is the optimiser or the model what limits SGD?"""
        task = run.data("mnist")
        model = task.lenet(width, task.classes, derive_seed(run.seed, "lenet", 0)).to(run.device)
        part = one_hot(task.train, task.classes).to(run.device)
        linear, solution = solve_tangent(model, part, self.lsmr_steps)
        params = {key: value.detach()[None] for key, value in linear.named_parameters()}
        buffers = {key: value.detach()[None] for key, value in linear.named_buffers()}
        found: dict[str, Any] = {"loss": solution.loss, "iterations": solution.iterations, "norm": solution.norm}
        for where, x, y in (("train", task.train.x, task.train.y), ("test", task.test.x, task.test.y)):
            found[where] = accuracy(stacked_outputs(linear, params, buffers, x, True)[0], y)
        return found | {"rows": solution.shape[0], "parameters": solution.shape[1], "optimality": solution.optimality}

    def recipe(self, name: str, **changes: Any) -> Recipe:
        """How the networks of a task are trained; the rate falls on CIFAR-10 alone."""
        drop = self.drop if name == "cifar10" else 0
        return replace(Recipe(self.epochs, self.lr, self.weight_decay, drop=drop), **changes)

    def search(
        self, run: Run, name: str, kind: str, points: Sequence[tuple[float, float]], recipe: Recipe
    ) -> dict[str, Any]:
        """Rates and decays, stacked: accuracy on held-out training images, test accuracy beside it."""
        task, held = run.data(name), self.validation
        train = task.train.take(torch.arange(held, len(task.train)))
        made = train_members(
            kind,
            lambda s: task.lenet(1, task.classes, s),
            train if recipe.loss == "cross_entropy" else one_hot(train, task.classes),
            recipe,
            [derive_seed(run.seed, "lenet", 0)] * len(points),
            augment=task.augment,
            rates={"lr": [lr for lr, _ in points], "weight_decay": [decay for _, decay in points]},
            device=run.device,
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

    @figure
    def accuracy(self, record: Record) -> Figure:
        """By width."""
        drawn, axes = drawing.canvas(1, 3, width=4.4)
        for axis, task in zip(axes, read.TASKS):
            widths = read.widths(record, task)
            for i, (kind, label) in enumerate((("network", "LeNet"), ("linear", "linearisation"))):
                for where, style in (("test", "o-"), ("train", ":")):
                    found = [summary(read.accuracies(record, task, w, kind, where)) for w in widths]
                    means, errors = [one["mean"] for one in found], [one["sem"] for one in found]
                    name = label if where == "test" else None
                    axis.errorbar(
                        widths, means, yerr=errors, fmt=style, color=drawing.COLOURS[i], markersize=4, label=name
                    )
            drawing.width_factors(axis, widths)
            drawing.label(axis, title=TITLES[task], y="accuracy, percent (training: dotted)", legend=True)
        return drawn

    @figure
    def gaps(self, record: Record) -> Figure:
        """By width, beside the published ones."""
        drawn, (axis,) = drawing.canvas(width=5.6)
        for i, task in enumerate(read.TASKS):
            widths = read.widths(record, task)
            found = [read.gaps(record, task, w) for w in widths]
            means, errors = [one["mean"] for one in found], [one["sem"] for one in found]
            drawing.line_with_errors(axis, widths, means, errors, i, TITLES[task])
            published = {int(name[1:]): value for name, value in GAPS[task].items()}
            axis.plot(list(published), list(published.values()), "x--", color=drawing.COLOURS[i], alpha=0.6)
        every = {
            w for task in read.TASKS for w in (*read.widths(record, task), *(int(name[1:]) for name in GAPS[task]))
        }
        drawing.width_factors(axis, sorted(every))
        drawing.label(axis, y="LeNet minus linearisation, test points\n(published: crosses)", legend=True)
        return drawn

    @figure
    def training(self, record: Record) -> Figure:
        """Test accuracy over epochs."""
        drawn, axes = drawing.canvas(1, 2, width=5.2)
        for axis, task in zip(axes, ("mnist", "shifted")):
            for i, width in enumerate(read.widths(record, task)):
                for kind, style in (("network", "o-"), ("linear", "s--")):
                    curve = record.metrics[f"train/{task}/x{width}/{kind}"]["curve"]
                    at = [float(epoch) for epoch in curve]
                    values = [curve[epoch][0]["test"] for epoch in curve]
                    shown = [float("nan") if value is None else value for value in values]
                    colour = drawing.COLOURS[i % len(drawing.COLOURS)]
                    axis.plot(
                        at, shown, style, color=colour, markersize=3, label=f"x{width}" if kind == "network" else None
                    )
            axis.set_xscale("symlog", linthresh=1)
            y = "test accuracy, percent (linearisation: dashed)"
            drawing.label(axis, title=TITLES[task], x="epoch", y=y, legend=True)
        return drawn


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

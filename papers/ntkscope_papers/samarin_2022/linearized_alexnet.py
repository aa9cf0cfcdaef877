"""Samarin, Roth & Belius (2022), Figure 5: AlexNet and its linearisation, on a stand-in for ten snake classes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from ntkscope import models
from ntkscope.core import Record, derive_seed
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, lacking, leg
from ntkscope_papers.framework.legs import unfinished
from ntkscope_papers.samarin_2022.linearized_claims import parameters
from ntkscope_papers.samarin_2022.readings import by_width, pairs
from ntkscope_papers.shared.lenet_tasks import Task, load_task
from ntkscope_papers.shared.paired_training import Recipe, one_hot, train_members

SIDE, CLASSES = 224, 10
STAND_IN = "CIFAR-10, enlarged to 224x224 in the model, in place of ten snake classes of ImageNet, which are not here"
TF32_FROM = 2  # times the width: 1e16 operations and more; the network and its linearisation round alike
RUNS = {  # kind, learning rate, weight decay
    "network": ("network", 0.1, 5e-6),
    "linear": ("linear", 1.0, 5e-7),
    "shared": ("linear", 0.1, 5e-6),
}


@dataclass(frozen=True)
class LinearizedAlexnet(Experiment):
    """Linearised CNNs, Figure 5: AlexNet and its linearisation on a stand-in for ten classes of ImageNet, by width.

    `images` training images of `dataset`, enlarged to `side` in the model; widths in `optional` run when named.
    """

    name = "linearized-alexnet"
    free = ("optional",)

    dataset: str = "cifar10"
    images: int = 13_000
    test_items: int = 5_000
    side: int = SIDE
    enlarge: int = 1
    widths: tuple[float, ...] = (1.0, 2.0)
    optional: tuple[float, ...] = (3.0, 4.0)
    epochs: int = 30
    drop: int = 10
    batch: int = 32

    smoke = {
        **{"dataset": "digits", "images": 24, "test_items": 20, "side": 64, "enlarge": 4},
        **{"widths": (0.05,), "optional": (), "epochs": 1, "drop": 0, "batch": 8},
    }

    def prepare(self, run: Run) -> Task:
        sizes: dict[str, Any] = {"train": self.images, "test": self.test_items, "enlarge": self.enlarge}
        return load_task(self.dataset, shifted=False, root=run.root, seed=run.seed, **sizes)

    @leg(
        "x{:g}/{}",
        over=lambda self: product((*self.widths, *self.optional), RUNS),
        optional=lambda self, width, name: width in self.optional,
    )
    def trained(self, run: Run, width: float, name: str) -> dict[str, Any]:
        """One network, or its linearisation, with the published rates; the rate falls tenfold every `drop` epochs."""
        kind, lr, decay = RUNS[name]
        task, channels = run.data, run.data.train.x.shape[1]
        recipe = Recipe(self.epochs, lr, decay, drop=self.drop, batch=self.batch, tf32=width >= TF32_FROM)
        with unfinished(run.record, f"x{width:g}/{name}") as store:
            made = train_members(
                kind,
                lambda s: enlarged_alexnet(width, s, side=self.side, channels=channels),
                one_hot(task.train, task.classes),
                recipe,
                [derive_seed(run.seed, "alexnet")],
                device=run.device,
                store=store,
            )
        found: dict[str, Any] = {"diverged": made.diverged[0], "weights": made.weights[0], "batches": made.batches[0]}
        for where, part in (("train", task.train), ("test", task.test)):
            outputs = made.outputs(part.x)[0]
            fine = bool(torch.isfinite(outputs).all())
            found[where] = round(100 * float((outputs.argmax(1) == part.y).double().mean()), 3) if fine else 0.0
        notes = [*made.notes, *(["products rounded to TF32 where the device can"] * recipe.tf32)]
        return {**found, "fit_seconds": round(made.seconds, 1), "notes": notes}

    @claim("linearized-alexnet-params", "Section 3", 60_000_000)
    def parameter_count(self, record: Record) -> Reading:
        """57.0 million with 10 outputs, 61.1 million with 1,000, to which the round figure belongs"""
        found = {f"{outputs} outputs": parameters("alexnet", classes=outputs) for outputs in (10, 1000)}
        return Reading(found, found == {"10 outputs": 57_044_810, "1000 outputs": 61_100_840}, exact=True)

    @claim("linearized-alexnet-overparam", "Section 4.2", {"images": 13_000, "rows": 130_000})
    def overparametrised(self, record: Record) -> Reading:
        """more parameters than the 10 · 13,000 rows"""
        found = {"parameters": parameters("alexnet", classes=CLASSES), "rows": CLASSES * self.images}
        return Reading(found, found["parameters"] > found["rows"], "arithmetic", exact=True)

    @claim(
        "linearized-best-hparams-alexnet",
        "Section 4.1",
        {"linearised": {"lr": 1, "weight_decay": 5e-7}, "standard": {"lr": 0.1, "weight_decay": 5e-6}},
        stand_in=STAND_IN,
    )
    def rates(self, record: Record) -> Reading:
        """linearisation at x1: lr 1 at least as good in test as lr 0.1"""
        best, shared = (by_width(record, "", f"/{name}") for name in ("linear", "shared"))
        width = next(iter(best), None)
        if width is None or width not in shared:
            return lacking("x1")
        found = {"lr 1, 5e-7": best[width]["test"], "lr 0.1, 5e-6": shared[width]["test"]}
        return Reading({width: found}, found["lr 1, 5e-7"] >= found["lr 0.1, 5e-6"])

    @claim(
        "linearized-snakes-gap",
        "Figure 5",
        {"best": {"x1": 20.4, "x4": 18.56}, "shared": "above 20 at all widths"},
        stand_in=STAND_IN,
    )
    def gap(self, record: Record) -> Reading:
        """a gap above 0 at every width: a stand-in tests the sign alone"""
        found = {width: round(net["test"] - lin["test"], 2) for width, (net, lin) in pairs(record, "").items()}
        if not found:
            return lacking("x1")
        return Reading(found, all(value > 0 for value in found.values()))

    @claim(
        "linearized-snakes-trend",
        "Figure 5",
        "width hardly affects AlexNet, strongly lowers the linearisation's training error",
        stand_in=STAND_IN,
    )
    def trend(self, record: Record) -> Reading:
        """x1 to x2: linearised training accuracy rises, by more than AlexNet's test accuracy moves"""
        both = list(pairs(record, "").values())
        if len(both) < 2:
            return lacking("x1", "x2")
        (first, first_linear), (last, last_linear) = both[0], both[-1]
        moved = {
            "AlexNet, test": last["test"] - first["test"],
            "linearisation, test": last_linear["test"] - first_linear["test"],
            "linearisation, train": last_linear["train"] - first_linear["train"],
        }
        rise = moved["linearisation, train"]
        return Reading({k: round(v, 2) for k, v in moved.items()}, rise > 0 and rise > abs(moved["AlexNet, test"]))

    @figure
    def accuracy(self, record: Record) -> Figure:
        """Accuracies by width."""
        drawn, (axis,) = drawing.canvas(width=5.4)
        for i, name in enumerate(RUNS):
            found = by_width(record, "", f"/{name}")
            for where, style in (("test", "o-"), ("train", "s:")):
                at, values = [float(w[1:]) for w in found], [row[where] for row in found.values()]
                axis.plot(
                    at, values, style, color=drawing.COLOURS[i], markersize=4, label=name if where == "test" else None
                )
        drawing.label(axis, x="width factor", y="accuracy, percent (training: dotted)", legend=True)
        return drawn


def enlarged_alexnet(width: float, seed: int, *, side: int = SIDE, channels: int = 3) -> nn.Module:
    """AlexNet with ten outputs behind a bilinear enlargement, which has no parameters; in evaluation mode."""
    enlarge = nn.Upsample(size=(side, side), mode="bilinear", align_corners=False)
    return nn.Sequential(enlarge, models.build("alexnet", width=width, in_channels=channels, seed=seed)).eval()

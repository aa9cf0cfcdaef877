"""When is a network its last layer, when is it its tangent? Both solved outright at several epochs of training."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope.core import Part, Record, Snapshot, derive_seed
from ntkscope.linalg import NumericalWarning
from ntkscope.machines import retrain_last_layer
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, lacking, leg
from ntkscope_papers.shared.lenet_tasks import Tasks, tasks_of
from ntkscope_papers.shared.networks import logits_of
from ntkscope_papers.shared.paired_training import Recipe, one_hot, train_members
from ntkscope_papers.shared.tangent_solve import solve_tangent

READ = {"readout": "readout solved anew", "tangent": "tangent solved"}
TITLES = {"shifted": "shifted MNIST", "cifar10": "CIFAR-10"}
NEAR = 1.0  # points


@dataclass(frozen=True)
class TangentOrLastLayer(Experiment):
    """LeNet in training: its readout solved anew and its tangent solved, at several epochs, beside the network itself.

    `images` training images, `held` of them to choose the ridge by; `steps` of LSMR for every tangent.
    """

    name = "tangent-or-last-layer"

    dataset: str = "mnist"
    colour: str = "cifar10"
    enlarge: int = 1
    images: int = 10_000
    held: int = 2_000
    test_items: int | None = None
    widths: tuple[int, ...] = (1, 10)
    epochs: tuple[int, ...] = (0, 1, 3, 10, 30)
    lr: float = 0.1
    weight_decay: float = 5e-5
    ridges: tuple[float, ...] = (0.1, 10.0)
    steps: int = 100

    smoke = {
        "dataset": "digits",
        "colour": "digits",
        "enlarge": 3,
        "images": 80,
        "held": 20,
        "test_items": 40,
        "widths": (1,),
        "epochs": (0, 1),
        "ridges": (0.1,),
        "steps": 5,
    }

    def prepare(self, run: Run) -> Tasks:
        sizes: dict[str, Any] = {
            "train": self.images,
            "test": self.test_items,
            "enlarge": self.enlarge,
            "seed": run.seed,
        }
        known = {"shifted": (self.dataset, True), "cifar10": (self.colour, False)}
        return tasks_of(known, root=run.root, **sizes)

    @leg("{1}/x{0}", over=lambda self: product(self.widths, TITLES))
    def compared(self, run: Run, width: int, name: str) -> dict[str, Any]:
        """A network in training; at every measured epoch its own test accuracy, its readout's and its tangent's."""
        task, own = run.data(name), derive_seed(run.seed, "tangent or last layer")
        last = max(self.epochs)
        items = torch.arange(len(task.train))
        part, held = (
            Part(p.x, p.y) for p in (task.train.take(items[self.held :]), task.fixed().take(items[: self.held]))
        )
        kept: dict[int, dict[str, Tensor]] = {}

        def watch(snapshot: Snapshot, template: nn.Module, vectorised: bool) -> None:
            kept[round(snapshot.epoch)] = {name: value[0].detach().clone() for name, value in snapshot.params.items()}

        def build(s: int) -> nn.Module:
            return task.lenet(width, task.classes, s)

        made = train_members(
            "network",
            build,
            one_hot(part, task.classes),
            Recipe(last, self.lr, self.weight_decay),
            [own],
            augment=task.augment,
            watch=watch,
            moments=self.epochs,
            device=run.device,
        )
        found: dict[str, Any] = {}
        for epoch in self.epochs:
            model = build(own).to(run.device)
            model.load_state_dict(kept[epoch])
            fixed = one_hot(task.fixed(epoch).take(items[self.held :]), task.classes).to(run.device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumericalWarning)  # a readout with nothing left to gain stays
                readouts = {ridge: retrain_last_layer(model, fixed, alpha=ridge) for ridge in self.ridges}
                tangents = {ridge: solve_tangent(model, fixed, self.steps, ridge)[0] for ridge in self.ridges}
            found[str(epoch)] = {
                "network": percent(model, task.test),
                "readout": chosen(readouts, held, task.test),
                "tangent": chosen(tangents, held, task.test),
            }
        return {"epochs": found, "fit_seconds": round(made.seconds, 1), "notes": list(made.notes)}

    @figure
    def readings(self, record: Record) -> Figure:
        """Test accuracies over training, a panel for each task and width."""
        names = list(arrivals(record))
        drawn, axes = drawing.canvas(max(1, -(-len(names) // 2)), 2, width=5.0)
        for axis, name in zip(axes, names):
            steps = record.metrics[name]["epochs"]
            at = [int(e) for e in steps]
            axis.plot(
                at,
                [s["network"] for s in steps.values()],
                "o-",
                color=drawing.COLOURS[0],
                label="network",
                markersize=4,
            )
            for i, (which, label) in enumerate(READ.items(), start=1):
                values = [s[which]["test"] for s in steps.values()]
                axis.plot(at, values, "s--", color=drawing.COLOURS[i], label=label, markersize=4)
            axis.set_xscale("symlog", linthresh=1)
            axis.set_xticks(at, [str(epoch) for epoch in at])
            axis.tick_params(axis="x", which="minor", bottom=False)
            drawing.label(axis, x="epoch", y="test accuracy, percent")
            task, width = name.split("/x")
            drawing.label(axis, title=f"{TITLES[task]}, ×{width}", legend=True)
        return drawn


def percent(model: nn.Module, part: Part) -> float:
    right = logits_of(model, part.x, batch=1000).argmax(1) == part.y
    return round(100 * float(right.double().mean()), 3)


def chosen(readings: Mapping[float, nn.Module], held: Part, test: Part) -> dict[str, Any]:
    """The ridge with the best accuracy on the held-out images, and its test accuracy; all of them beside it."""
    every = {f"{ridge:g}": {"held": percent(m, held), "test": percent(m, test)} for ridge, m in readings.items()}
    best = max(every, key=lambda name: every[name]["held"])
    return {"ridge": float(best), "test": every[best]["test"], "ridges": every}


def arrivals(record: Record) -> dict[str, dict[str, Any]]:
    """For every task and width: the first epoch whose reading is within a point of the trained network, or None."""
    found = {key: value for key, value in record.metrics.items() if isinstance(value, Mapping) and "epochs" in value}
    return {name: _arrival(result["epochs"]) for name, result in found.items()}


def _arrival(epochs: Mapping[str, Any]) -> dict[str, Any]:
    numbers = sorted(map(int, epochs))
    final = epochs[str(numbers[-1])]["network"]
    first = {which: next((e for e in numbers if epochs[str(e)][which]["test"] >= final - NEAR), None) for which in READ}
    return {"network": final, **first}


@claim(
    "own-tangent-reaches-network",
    "this project",
    "solved at an early enough epoch's weights, tangent and readout are as good as the trained network",
)
def _reaches(config: Any, record: Record) -> Reading:
    """each within one point of the trained network's test accuracy, or above it, at some measured epoch, for every task
    and width"""
    found = arrivals(record)
    if not found:
        return lacking("shifted", "cifar10")
    return Reading(found, all(row[which] is not None for row in found.values() for which in READ), _gaps(record))


@claim("own-tangent-before-readout", "this project", "the tangent gets there no later than the readout")
def _before(config: Any, record: Record) -> Reading:
    """first such epoch of the tangent not after the readout's, for every task and width where both have one"""
    found = arrivals(record)
    rows = {name: row for name, row in found.items() if row["tangent"] is not None and row["readout"] is not None}
    if not rows:
        return lacking("shifted", "cifar10") if not found else Reading(found, False, "no task where both arrive")
    return Reading(found, all(row["tangent"] <= row["readout"] for row in rows.values()))


def _gaps(record: Record) -> str:
    words = []
    for name in arrivals(record):
        steps = record.metrics[name]["epochs"]
        rows = [f"{e}: {s['network']:g}/{s['readout']['test']:g}/{s['tangent']['test']:g}" for e, s in steps.items()]
        words.append(f"{name} network/readout/tangent at epoch {', '.join(rows)}")
    return "; ".join(words)

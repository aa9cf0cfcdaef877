"""Samarin, Roth & Belius (2022), Tables 1 and 2: one digit against the rest, by LeNet, its linearisation, and a solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ntkscope import data
from ntkscope.core import Claim, Part, Record
from ntkscope_papers.framework.claims import Published, verdicts
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs, unfinished
from ntkscope_papers.samarin_2022.binary_claims import PUBLISHED, READINGS
from ntkscope_papers.samarin_2022.binary_figures import draw
from ntkscope_papers.samarin_2022.tangent_ridge import by_jacobian, make_system, ridge_path
from ntkscope_papers.shared.lenet_tasks import Task, load_task
from ntkscope_papers.shared.paired_training import KINDS, Recipe, train_members

TASKS = {"standard": False, "shifted": True}


@dataclass(frozen=True)
class BinaryMnist(Experiment):
    """Linearised CNNs, Tables 1 and 2: a digit against the rest by LeNet, its linearisation, and exact least squares.

    `ridges` of the solver at width 1 and at fractional widths, in units of the mean squared length of a gradient;
    `wide_ridges` at other widths. `jacobian_ridges`: those that are solved from the Jacobian as well. Widths in `optional` run
    when named. `digits`: those that SGD tells from the rest, above width 1 the first of them; the solver does it with all.
    """

    name = "binary-mnist"
    free = ("memory", "initialisations", "optional")

    dataset: str = "mnist"
    enlarge: int = 1
    train_items: int | None = None
    test_items: int | None = None
    solver_widths: tuple[int, ...] = (1, 2, 5, 10, 25)
    initialisations: int = 3
    ridges: tuple[float, ...] = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    wide_ridges: tuple[float, ...] = (0.0, 1e-8, 1e-4, 1e-2)
    jacobian_ridges: tuple[float, ...] = (1e-6, 1e-18)
    fractions: tuple[float, ...] = (0.7, 0.85, 1.2, 1.41)
    sgd_widths: tuple[int, ...] = (1, 2, 5)
    optional: tuple[int, ...] = (10, 25, 60)
    digits: tuple[int, ...] = (0, 1)
    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-5
    memory: str = "110GiB"

    smoke = {
        "dataset": "digits",
        "enlarge": 3,
        "train_items": 120,
        "test_items": 60,
        "solver_widths": (1, 2),
        "initialisations": 1,
        "ridges": (0.0, 1e-9, 1e-5, 1e-2),
        "wide_ridges": (0.0, 1e-9),
        "jacobian_ridges": (1e-5,),
        "fractions": (0.5,),
        "sgd_widths": (1,),
        "optional": (2,),
        "epochs": 2,
        "memory": "1GiB",
    }

    def measure(self, run: Run) -> None:
        tasks = {
            name: load_task(
                self.dataset,
                shifted=shifted,
                root=run.root,
                train=self.train_items,
                test=self.test_items,
                enlarge=self.enlarge,
                seed=run.seed,
            )
            for name, shifted in TASKS.items()
        }
        run_legs(run.record, legs(self, run.record, tasks, run.seed, run.device), self.legs, progress=run.progress)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return verdicts(self.name, PUBLISHED, READINGS, self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def solver(config: BinaryMnist, task: Task, width: float, seed: int, device: torch.device) -> dict[str, Any]:
    """Every digit against the rest at every ridge, of one network."""
    ridges = config.ridges if width <= 1 or width not in config.solver_widths else config.wide_ridges
    model = task.lenet(width, 1, seed)
    system = make_system(model, task.fixed(), task.test, device=device, memory=config.memory)
    return ridge_path(system, ridges, task.classes)


def from_jacobian(config: BinaryMnist, task: Task, seed: int, device: torch.device) -> dict[str, Any]:
    """The same at width 1 from the Jacobian."""
    fixed = task.fixed()
    return by_jacobian(task.lenet(1, 1, seed), fixed, task.test, config.jacobian_ridges, task.classes, device=device)


def descent(
    config: BinaryMnist, record: Record, name: str, task: Task, width: int, kind: str, seed: int, device: torch.device
) -> dict[str, Any]:
    """LeNet or its linearisation by SGD, the digits stacked: they share w₀ and batches."""
    digits = config.digits if width == 1 else config.digits[:1]
    recipe = Recipe(config.epochs, config.lr, config.weight_decay)
    parts = [data.one_vs_rest(Part(task.train.x, task.train.y), digit) for digit in digits]
    with unfinished(record, f"sgd/{name}/x{width}/{kind}") as store:
        made = train_members(
            kind,
            lambda s: task.lenet(width, 1, s),
            parts,
            recipe,
            [seed] * len(parts),
            augment=task.augment,
            device=device,
            store=store,
        )
    found: dict[str, Any] = {}
    for where, part in (("train", task.fixed(config.epochs)), ("test", task.test)):
        outputs = made.outputs(part.x)[:, :, 0]
        for i, digit in enumerate(digits):
            right = (outputs[i] > 0) == (part.y == digit)
            found.setdefault(str(digit), {})[where] = round(100 * float(right.double().mean()), 4)
            found[str(digit)]["diverged"] = made.diverged[i]
    return {
        "digits": found,
        "weights": made.weights[0],
        "batches": made.batches[0],
        "fit_seconds": round(made.seconds, 1),
        "notes": list(made.notes),
    }


def legs(config: BinaryMnist, record: Record, tasks: Mapping[str, Task], seed: int, device: torch.device) -> list[Leg]:
    """Every measurement, the solver first."""
    found: list[Leg] = []
    for width in config.solver_widths:
        for name, task in tasks.items():
            for s in range(seed, seed + (config.initialisations if width == 1 else 1)):
                compute = partial(solver, config, task, width, s, device)
                found.append(Leg(f"solver/{name}/x{width:g}/{s - seed}", compute))
    found += [
        Leg(f"fraction/{name}/x{fraction:g}", partial(solver, config, task, fraction, seed, device))
        for fraction in config.fractions
        for name, task in tasks.items()
    ]
    found += [
        Leg(f"jacobian/{name}/x1", partial(from_jacobian, config, task, seed, device)) for name, task in tasks.items()
    ]
    for width in (*config.sgd_widths, *(w for w in config.optional if w not in config.sgd_widths)):
        for name, task in tasks.items():
            for kind in KINDS:
                compute = partial(descent, config, record, name, task, width, kind, seed, device)
                found.append(Leg(f"sgd/{name}/x{width}/{kind}", compute, optional=width not in config.sgd_widths))
    return found

"""Qadeer et al., Figures 8 to 11 and Theorems 5.1, 5.2: two classes in the plane by networks, by their NTK and their CK."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import Claim, Record
from ntkscope.linalg import NumericalWarning
from ntkscope.measures.logistic_bounds import logistic_bounds, signed_scores, summed_cross_entropy
from ntkscope.surrogates import KernelLogistic
from ntkscope.training import StopWhen
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.results import once
from ntkscope_papers.qadeer_2023.cells import GridTask, run_cells
from ntkscope_papers.qadeer_2023.logistic_claims import PUBLISHED, judge
from ntkscope_papers.qadeer_2023.logistic_figures import draw
from ntkscope_papers.qadeer_2023.logistic_fits import margin, plain_newton
from ntkscope_papers.qadeer_2023.logistic_instances import corner_instances
from ntkscope_papers.qadeer_2023.networks import (
    Cell,
    Job,
    Machines,
    Trained,
    cells,
    columns,
    in_blocks,
    read_trained,
    trained,
)
from ntkscope_papers.shared.networks import weights_file

BOUNDS = (
    "omega",
    "ordered",
    "corner_ck",
    "corner_ntk",
    "matching",
    "lipschitz_ck",
    "lipschitz_ntk",
    "theorem_5_1",
    "theorem_5_1_printed",
    "theorem_5_2",
    "theorem_5_2_printed",
)
NEWTON_STEPS = 300


@dataclass(frozen=True)
class LogisticRegression(Experiment):
    """Qadeer et al., Figures 8-11, Theorems 5.1, 5.2: two classes in the plane by networks and by their NTK and CK.

    `ridge`: of `Σ ln(1 + exp ψ̂) + ridge ‖ψ‖²` in the kernel's norm; `ridges`: those of the `watched` networks.

    The watched networks are trained once more without the stop at `accuracy`, and measured after `checkpoints` epochs.
    `only`: the boundaries, architectures or pairs of them ("F1/tanh-128") that a call computes; all where empty. `workers`:
    processes that measure trained networks.
    """

    name = "logistic-regression"
    free = ("watched", "ridges", "instances")
    parts = ("legs", "only", "workers")

    boundaries: tuple[str, ...] = ("F1", "F2")
    architectures: tuple[str, ...] = ("tanh-128", "tanh-64", "relu-128")
    evolving: tuple[str, ...] = ("tanh-128",)
    networks: int = 100
    watched: int = 10
    depth: int = 2
    intervals: tuple[int, int] = (11, 7)
    refinement: tuple[int, int] = (2, 3)
    lr: float = 1e-5
    epochs: int = 4000
    accuracy: float = 0.85
    checkpoints: tuple[int, ...] = (0, 100, 500, 1000, 2000, 4000)
    ridge: float = 1e-6
    ridges: tuple[float, ...] = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
    instances: int = 300
    only: tuple[str, ...] = ()
    workers: int = 1

    smoke = {
        "networks": 2,
        "watched": 1,
        "lr": 1e-3,
        "epochs": 60,
        "checkpoints": (0, 20, 60),
        "ridge": 1e-3,
        "ridges": (1e-3, 1.0),
        "instances": 30,
    }

    def measure(self, run: Run) -> None:
        once(run.record, "instances", lambda: corner_instances(self.instances, run.seed))
        chosen = cells(self.boundaries, self.architectures, self.only)

        def work(cell: Cell) -> list[Job]:
            stopped, unstopped = (weights_file(run.record, key) for key in (str(cell), f"{cell}/unstopped"))
            return jobs(self, cell, stopped, unstopped)

        run_cells(
            run.record,
            chosen,
            self.workers,
            jobs=work,
            train=lambda cell, count: train(
                self, run.record, cell, range(run.seed, run.seed + count), run.device, run.progress
            ),
            progress=run.progress,
        )

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


class Task(GridTask):
    """One boundary."""

    source = ("logistic-boundary", "boundary")

    @property
    def shape(self) -> tuple[int, int]:
        """Of the test grid."""
        (n1, n2), (t1, t2) = self.config.intervals, self.config.refinement
        return n1 * t1 + 1, n2 * t2 + 1

    @property
    def nodes(self) -> Tensor:
        t1, t2 = self.config.refinement
        return torch.arange(len(self.inputs)).reshape(self.shape)[::t1, ::t2].flatten()

    @cached_property
    def labels(self) -> np.ndarray:
        """Of the test nodes, on their grid."""
        eta: np.ndarray = self.split.test.y.reshape(self.shape).numpy()
        return eta

    @property
    def train_labels(self) -> np.ndarray:
        chosen: np.ndarray = self.labels.ravel()[self.nodes.numpy()]
        return chosen

    def measures(self, scores: np.ndarray) -> dict[str, float]:
        """Summed cross-entropy and accuracy on test and training nodes of scores at the test nodes."""
        t1, t2 = self.config.refinement
        signed = signed_scores(scores.reshape(self.shape), self.labels)
        found = {}
        for where, some in (("", signed), (" train", signed[::t1, ::t2])):
            found[f"loss{where}"] = summed_cross_entropy(some)
            found[f"accuracy{where}"] = float((some < 0).mean())
        return found


def network(config: LogisticRegression, cell: Cell, seed: int) -> nn.Module:
    """Two outputs, PyTorch's default initialisation."""
    return models.build(
        "mlp", in_features=2, classes=2, widths=cell.width, depth=config.depth, activation=cell.activation, seed=seed
    )


def log_odds(model: nn.Module) -> nn.Module:
    """The output of class 1 minus that of class 0."""
    return models.contrast(model, 1, 0)


def newton(task: Task, kernel: Tensor, ridge: float) -> tuple[np.ndarray, bool]:
    """Eq. 15 with a ridge, by Newton's method: scores at the test nodes, and whether the minimum was reached to 1e-8."""
    own = kernel[task.nodes]
    alpha = 2 * ridge / len(own)  # the mean of the losses plus α/2 of the squared norm
    solver = KernelLogistic(alpha, multi_class="ovr", fit_intercept=False, max_iter=NEWTON_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # said by the second value
        warnings.simplefilter("ignore", NumericalWarning)  # eigenvalues below zero by rounding
        fitted = solver.fit(own, task.train_labels)
    return fitted.decision_function(kernel), bool(fitted.converged_)


def kernels(task: Task, machines: Machines) -> tuple[dict[str, Tensor], Tensor]:
    """NTK and CK of the log-odds between test and training nodes, and the CK's features at the test nodes."""
    features = machines.ck_features()
    return {"ntk": machines.ntk(), "ck": features @ features[task.nodes].T}, features


def measure(task: Task, machines: Machines) -> tuple[dict[str, Any], dict[str, np.ndarray], Tensor]:
    """Losses and accuracies of the network and its two machines; the machines' scores; the CK's features."""
    both, features = kernels(task, machines)
    found = _named("network", task.measures(machines.outputs().numpy()))
    scores = {}
    for name, kernel in both.items():
        scores[name], converged = newton(task, kernel, task.config.ridge)
        found |= _named(name, task.measures(scores[name])) | {f"{name} converged": converged}
    return found, scores, features


def _named(name: str, measures: Mapping[str, float]) -> dict[str, Any]:
    return {f"{name} {key}": value for key, value in measures.items()}


@dataclass(frozen=True, eq=False)
class Subjects:
    """The trained networks of one cell, to be measured one after the other."""

    task: Task
    ensemble: Trained
    machines: Machines

    @classmethod
    def of(cls, config: LogisticRegression, cell: Cell, path: Path) -> Subjects:
        task = Task(config, cell.task)
        return cls(task, read_trained(path), Machines(network(config, cell, 0), task.inputs, task.nodes, log_odds))


def runs_of(config: LogisticRegression, cell: Cell, path: Path, members: range) -> dict[str, Any]:
    """Everything that is measured on some trained networks."""
    subjects = Subjects.of(config, cell, path)
    return columns([_final(subjects, member) for member in members])


def _final(subjects: Subjects, member: int) -> dict[str, Any]:
    task = subjects.task
    subjects.machines.wear(subjects.ensemble.final, member)
    found, scores, features = measure(task, subjects.machines)
    ck, ntk = (scores[name].reshape(task.shape) for name in ("ck", "ntk"))
    bounds = logistic_bounds(ck, ntk, task.labels, refinement=task.config.refinement)
    found |= {name: asdict(bounds)[name] for name in BOUNDS}
    # the inequalities as they stand, also where the ridge breaks Eq. 52, which the proofs use
    for theorem, first, second in (("5.1", bounds.c1, bounds.c2), ("5.2", bounds.d1, bounds.d2)):
        holds = _at_most(bounds.test_ntk, first, bounds.test_ck) and _at_most(bounds.test_ck, second, bounds.test_ntk)
        found[f"inequalities of {theorem}"] = holds
    found["margin"] = margin(features[task.nodes], task.train_labels)
    return found | {"epochs": int(subjects.ensemble.steps[member])}


def _at_most(value: float, constant: float, bound: float) -> bool:
    return math.isinf(constant) or value <= constant * bound


def ridges_of(config: LogisticRegression, cell: Cell, path: Path, members: range) -> dict[str, Any]:
    """Test loss and accuracy of both machines for every ridge."""
    subjects = Subjects.of(config, cell, path)
    task, machines, rows = subjects.task, subjects.machines, []
    for member in members:
        machines.wear(subjects.ensemble.final, member)
        row: dict[str, Any] = {}
        for name, kernel in kernels(task, machines)[0].items():
            each = [task.measures(newton(task, kernel, ridge)[0]) for ridge in config.ridges]
            row |= {f"{name} {key}": [one[key] for one in each] for key in ("loss", "accuracy")}
        rows.append(row)
    return columns(rows)


def unridged_of(config: LogisticRegression, cell: Cell, path: Path, members: range) -> dict[str, Any]:
    """Newton's method on Eq. 15 as it stands, without a ridge: where it stopped, test loss and accuracy of both machines."""
    subjects = Subjects.of(config, cell, path)
    task, machines, rows = subjects.task, subjects.machines, []
    for member in members:
        machines.wear(subjects.ensemble.final, member)
        row = _named("network", task.measures(machines.outputs().numpy()))
        for name, kernel in kernels(task, machines)[0].items():
            scores, steps, slope = plain_newton(kernel[task.nodes].numpy(), task.train_labels)
            row |= _named(name, task.measures(kernel.numpy() @ scores)) | {
                f"{name} steps": steps,
                f"{name} slope": slope,
            }
        rows.append(row)
    return columns(rows)


def checkpoint_of(config: LogisticRegression, cell: Cell, path: Path, step: int) -> dict[str, Any]:
    """Of the watched networks after some epochs."""
    subjects = Subjects.of(config, cell, path)
    params, rows = subjects.ensemble.path[step], []
    for member in range(len(next(iter(params.values())))):
        subjects.machines.wear(params, member)
        rows.append(measure(subjects.task, subjects.machines)[0])
    return columns(rows, [name for name in rows[0] if name.endswith(("loss", "accuracy"))])


def train(
    config: LogisticRegression, record: Record, cell: Cell, seeds: range, device: torch.device, progress: bool
) -> None:
    """The networks of one cell until the stop, and the watched ones without it where their evolution is measured."""
    part = Task(config, cell.task).single
    watched = min(config.watched, config.networks)
    how: dict[str, Any] = {
        "optimizer": "adam",
        "lr": config.lr,
        "epochs": config.epochs,
        "device": device,
        "progress": progress,
    }

    def build(s: int) -> nn.Module:
        return network(config, cell, s)

    stop = StopWhen(accuracy=config.accuracy)
    trained(record, str(cell), build, part, seeds=seeds, stop=stop, **how)
    steps = [f"evolution/{cell}/{step}" for step in config.checkpoints]
    if cell.network in config.evolving and not all(key in record.metrics for key in steps):
        key, moments = f"{cell}/unstopped", config.checkpoints
        trained(record, key, build, part, seeds=seeds[:watched], watched=watched, moments=moments, **how)


def jobs(config: LogisticRegression, cell: Cell, stopped: Path, unstopped: Path) -> list[Job]:
    """What is measured on the networks of one cell."""
    made = in_blocks(f"runs/{cell}", runs_of, config.networks, config, cell, stopped)
    watched = min(config.watched, config.networks)
    made += in_blocks(f"ridges/{cell}", ridges_of, watched, config, cell, stopped)
    made += in_blocks(f"unridged/{cell}", unridged_of, watched, config, cell, stopped)
    if cell.network in config.evolving:
        steps = config.checkpoints
        made += [
            Job(f"evolution/{cell}/{step}", checkpoint_of, (config, cell, unstopped, step), watched) for step in steps
        ]
    return made

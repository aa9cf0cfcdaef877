"""Qadeer et al., Figures 3 to 7 and Theorems 4.1, 4.2: smooth functions by networks, by their NTK, CK and CK features."""

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
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import Claim, Part, Record
from ntkscope.linalg import NumericalWarning
from ntkscope.machines import retrain_last_layer
from ntkscope.measures.regression_bounds import regression_bounds, trapezoid_norm
from ntkscope.surrogates import ConjugateLeastSquares, MinimumNorm
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.results import once
from ntkscope_papers.qadeer_2023.cells import GridTask, run_cells
from ntkscope_papers.qadeer_2023.instances import monotone_instances
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
from ntkscope_papers.qadeer_2023.regression_claims import judge
from ntkscope_papers.qadeer_2023.regression_figures import draw
from ntkscope_papers.qadeer_2023.regression_published import PUBLISHED
from ntkscope_papers.shared.networks import weights_file

RETRAINED = "tanh-128"  # networks whose last layer is solved with `retrain_last_layer` too
KINKED = "relu"
STEPS_ACROSS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
LARGEST_KINKS = 16
BOUNDS = (
    "beta",
    "projection_error",
    "ordered",
    "monotone_ck",
    "monotone_ntk",
    "lipschitz_ck",
    "lipschitz_ntk",
    "theorem_4_1",
    "theorem_4_2",
    "theorem_4_2_printed",
)


@dataclass(frozen=True)
class FunctionRegression(Experiment):
    """Qadeer et al., Figures 3-7, Theorems 4.1, 4.2: networks on smooth functions against NTK, CK and CK features.

    `watched`: networks followed through training every `every` steps, and solved with all `cutoffs` at the end.

    `only`: the targets, architectures or pairs of them ("f1/tanh-128") that a call computes; all where empty. `workers`:
    processes that measure trained networks.
    """

    name = "function-regression"
    free = ("watched", "cutoffs", "instances")
    parts = ("legs", "only", "workers")

    targets: tuple[str, ...] = ("f1", "f2", "f3")
    architectures: tuple[str, ...] = ("tanh-128", "tanh-256", "relu-128")
    evolving: tuple[str, ...] = ("tanh-128", "relu-128")
    networks: int = 100
    watched: int = 10
    depth: int = 3
    intervals: int = 200
    refinement: int = 3
    steps: int = 2400
    every: int = 200
    lr: float = 1e-3
    cutoffs: tuple[float, ...] = (1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
    instances: int = 2000
    only: tuple[str, ...] = ()
    workers: int = 1

    smoke = {
        "targets": ("f1", "f2"),
        "architectures": ("tanh-128", "tanh-256", "relu-128"),
        "networks": 2,
        "watched": 1,
        "intervals": 40,
        "steps": 150,
        "every": 50,
        "cutoffs": (1e-15, 1e-12, 1e-9),
        "instances": 50,
    }

    @property
    def moments(self) -> tuple[int, ...]:
        return tuple(range(0, self.steps + 1, self.every))

    def measure(self, run: Run) -> None:
        once(run.record, "instances", lambda: monotone_instances(self.instances, run.seed))
        chosen = cells(self.targets, self.architectures, self.only)
        run_cells(
            run.record,
            chosen,
            self.workers,
            jobs=lambda cell: jobs(self, cell, weights_file(run.record, str(cell))),
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
    """One target; every `refinement`-th test node is a training node."""

    source = ("target-function", "function")

    @property
    def train(self) -> Part:
        return self.split.train

    @property
    def weights(self) -> Tensor:
        return torch.as_tensor(self.train.extras["weights"])

    @property
    def nodes(self) -> Tensor:
        return torch.arange(0, len(self.inputs), self.config.refinement)

    @cached_property
    def values(self) -> np.ndarray:
        f: np.ndarray = self.split.test.y.numpy()
        return f

    def errors(self, fitted: Any) -> tuple[float, float]:
        """Test and training error, ‖f - g‖₁ and ‖f - g‖₀, of values at the test nodes."""
        gap = self.values - np.asarray(fitted)
        return trapezoid_norm(gap), trapezoid_norm(gap[:: self.config.refinement])


def network(config: FunctionRegression, cell: Cell, seed: int) -> nn.Module:
    """PyTorch's default initialisation."""
    return models.build(
        "mlp", in_features=1, widths=cell.width, depth=config.depth, activation=cell.activation, seed=seed
    )


@dataclass(frozen=True, eq=False)
class Fits:
    """Kernels of one network, and the machines fitted on them."""

    task: Task
    ntk: Tensor
    features: Tensor

    def kernel_machine(self, which: str, cutoff: float | None = None) -> tuple[np.ndarray, int]:
        """Eq. 14 with the NTK or the CK: values at the test nodes, and the rank kept; the cut-off is (N + 1) ε where None."""
        kernel = self.ntk if which == "ntk" else self.features @ self.features[self.task.nodes].T
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # negative eigenvalues at the smallest cut-offs
            fitted = MinimumNorm(cutoff).fit(kernel[self.task.nodes], self.task.train.y, self.task.weights)
        return fitted.predict(kernel), int(fitted.rank_)

    def jacobian_machine(self, cutoff: float | None = None) -> tuple[np.ndarray, int]:
        """CKJ: least squares on the CK's features themselves."""
        solver = ConjugateLeastSquares(rtol=cutoff)
        fitted = solver.fit(self.features[self.task.nodes], self.task.train.y, self.task.weights)
        return fitted.predict(self.features), int(fitted.rank_)


def fits_of(task: Task, machines: Machines) -> Fits:
    return Fits(task, machines.ntk(), machines.ck_features())


def errors(task: Task, machines: Machines) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Test and training errors of the network and its three machines, ranks; and the fitted values."""
    fits = fits_of(task, machines)
    fitted = {name: fits.kernel_machine(name) for name in ("ntk", "ck")} | {"ckj": fits.jacobian_machine()}
    values = {"network": machines.outputs().numpy()} | {name: one for name, (one, _) in fitted.items()}
    found: dict[str, Any] = {}
    for name, one in values.items():
        found[name], found[f"{name} train"] = task.errors(one)
    return found | {f"{name} rank": rank for name, (_, rank) in fitted.items()}, values


@dataclass(frozen=True, eq=False)
class Subjects:
    """The trained networks of one cell, to be measured one after the other."""

    cell: Cell
    task: Task
    ensemble: Trained
    machines: Machines

    @classmethod
    def of(cls, config: FunctionRegression, cell: Cell, path: Path) -> Subjects:
        task = Task(config, cell.task)
        return cls(cell, task, read_trained(path), Machines(network(config, cell, 0), task.inputs, task.nodes))


def errors_of(config: FunctionRegression, cell: Cell, path: Path, members: range) -> dict[str, Any]:
    """Everything that is measured on some trained networks."""
    subjects = Subjects.of(config, cell, path)
    return columns([_final(subjects, member) for member in members])


def _final(subjects: Subjects, member: int) -> dict[str, Any]:
    task, machines = subjects.task, subjects.machines
    machines.wear(subjects.ensemble.final, member)
    found, values = errors(task, machines)
    bounds = regression_bounds(task.values, values["ck"], values["ntk"], refinement=task.config.refinement)
    found |= {name: asdict(bounds)[name] for name in BOUNDS}
    # both inequalities of Theorem 4.2 as they stand, also where rounding breaks Eq. 38, which its proof uses
    first = bounds.test_ntk**2 <= bounds.d1 * bounds.test_ck**2 + bounds.slack_ntk
    second = math.isinf(bounds.d2) or bounds.test_ck**2 <= bounds.d2 * bounds.test_ntk**2 + bounds.slack_ck
    found["inequalities of 4.2"] = bool(first and second)
    if subjects.cell.network == RETRAINED:
        solved = retrain_last_layer(machines.model, task.train, weights=task.weights)
        with torch.no_grad():
            found["retrained"] = task.errors(solved(task.inputs)[:, 0].numpy())[0]
    return found


def cutoffs_of(config: FunctionRegression, cell: Cell, path: Path, members: range) -> dict[str, Any]:
    """Test errors for every cut-off: of eigenvalues for the kernels, of singular values for the features."""
    subjects = Subjects.of(config, cell, path)
    task, machines, rows = subjects.task, subjects.machines, []
    for member in members:
        machines.wear(subjects.ensemble.final, member)
        fits = fits_of(task, machines)
        row = {n: [task.errors(fits.kernel_machine(n, c)[0])[0] for c in config.cutoffs] for n in ("ntk", "ck")}
        rows.append(row | {"ckj": [task.errors(fits.jacobian_machine(c)[0])[0] for c in config.cutoffs]})
    return columns(rows)


def step_of(config: FunctionRegression, cell: Cell, path: Path, step: int) -> dict[str, Any]:
    """Test errors of the watched networks at one step of training."""
    subjects = Subjects.of(config, cell, path)
    params, rows = subjects.ensemble.path[step], []
    for member in range(len(next(iter(params.values())))):
        subjects.machines.wear(params, member)
        rows.append(errors(subjects.task, subjects.machines)[0])
    return columns(rows, ("network", "ntk", "ck", "ckj"))


def kinks_of(config: FunctionRegression, cell: Cell, path: Path) -> dict[str, Any]:
    """How far tangent and last-layer features of the first network are apart on both sides of a kink of its first layer.

    Of the kinks inside the interval the one with the largest distance of tangent features at the smallest step.
    """
    subjects = Subjects.of(config, cell, path)
    subjects.machines.wear(subjects.ensemble.final, 0)
    model = subjects.machines.model
    layer: Any = model.get_submodule("layer1")
    at = (-layer.bias / layer.weight[:, 0]).detach()
    at = at[at.abs() < 0.95][:LARGEST_KINKS]
    left, right = torch.arange(len(at)), torch.arange(len(at)) + len(at)
    found: dict[str, list[list[float]]] = {"ntk": [], "ck": []}
    for step in STEPS_ACROSS:
        both = torch.cat([at - step, at + step])[:, None]
        near = Machines(model, both, torch.arange(len(both)))
        kernel, features = near.ntk(), near.ck_features()
        squared = kernel.diagonal()[left] + kernel.diagonal()[right] - 2 * kernel[left, right]
        found["ntk"].append(squared.clamp_min(0).sqrt().tolist())
        found["ck"].append((features[left] - features[right]).norm(dim=1).tolist())
    largest = int(np.argmax(found["ntk"][-1]))
    return {"steps": list(STEPS_ACROSS)} | {name: [row[largest] for row in rows] for name, rows in found.items()}


def train(
    config: FunctionRegression, record: Record, cell: Cell, seeds: range, device: torch.device, progress: bool
) -> None:
    """The networks of one cell in one ensemble."""
    evolving = cell.network in config.evolving
    trained(
        record,
        str(cell),
        lambda s: network(config, cell, s),
        Task(config, cell.task).single,
        seeds=seeds,
        watched=config.watched if evolving else 0,
        moments=config.moments if evolving else (),
        optimizer="adam",
        lr=config.lr,
        loss="mse",
        weights="weights",
        steps=config.steps,
        device=device,
        progress=progress,
    )


def jobs(config: FunctionRegression, cell: Cell, path: Path) -> list[Job]:
    """What is measured on the networks of one cell."""
    here = (config, cell, path)
    made = in_blocks(f"errors/{cell}", errors_of, config.networks, *here)
    made += in_blocks(f"cutoffs/{cell}", cutoffs_of, min(config.watched, config.networks), *here)
    if cell.network in config.evolving:
        watched = min(config.watched, config.networks)
        made += [Job(f"evolution/{cell}/{step}", step_of, (*here, step), watched) for step in config.moments]
    if cell.activation == KINKED:
        made.append(Job(f"kinks/{cell}", kinks_of, here))
    return made

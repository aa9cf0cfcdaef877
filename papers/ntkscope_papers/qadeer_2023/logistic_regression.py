"""Qadeer et al., Figures 8 to 11 and Theorems 5.1, 5.2: two classes in the plane by networks, by their NTK and their CK."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import linprog
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from ntkscope import models, training
from ntkscope.core import Part, Record, numpy_generator
from ntkscope.linalg import NumericalWarning
from ntkscope.surrogates import KernelLogistic
from ntkscope.training import StopWhen
from ntkscope_papers.framework import Run, claims_of, drawing, figure, leg
from ntkscope_papers.qadeer_2023 import logistic_bounds as bound
from ntkscope_papers.qadeer_2023 import logistic_claims
from ntkscope_papers.qadeer_2023 import networks as nets
from ntkscope_papers.qadeer_2023.grids import logistic_boundary
from ntkscope_papers.qadeer_2023.logistic_claims import NARROW
from ntkscope_papers.qadeer_2023.networks import KINKED, SMOOTH, Cell, GridExperiment, GridTask, Machines, Trained

NEWTON_STEPS = 300
PLAIN_STEPS, PLAIN_SLOPE = 50, 1e-6  # of Newton's method without a ridge
CELLS, TAU, RIDGE, FLIPPED = (3, 2), (2, 3), 1e-3, 0.4  # of the random instances
GRID = np.meshgrid(*(np.linspace(-1, 1, n * t + 1) for n, t in zip(CELLS, TAU)), indexing="ij")
CORNER_EPOCHS = 400
NODES = (slice(None, None, TAU[0]), slice(None, None, TAU[1]))
NAMES = ("network", "ntk", "ck")
MEASURES = {"loss": "summed test cross-entropy", "accuracy": "test accuracy"}


class Task(GridTask):
    """One boundary."""

    source = staticmethod(logistic_boundary)

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
        signed = bound.signed_scores(scores.reshape(self.shape), self.labels)
        found = {}
        for where, some in (("", signed), (" train", signed[::t1, ::t2])):
            found[f"loss{where}"] = bound.summed_cross_entropy(some)
            found[f"accuracy{where}"] = float((some < 0).mean())
        return found


@dataclass(frozen=True)
class LogisticRegression(GridExperiment):
    """Qadeer et al., Figures 8-11, Theorems 5.1, 5.2: two classes in the plane by networks and by their NTK and CK.

    `ridge`: of `Σ ln(1 + exp ψ̂) + ridge ‖ψ‖²` in the kernel's norm; `ridges`: those of the `watched` networks.

    The watched networks are trained once more without the stop at `accuracy`, and measured after `checkpoints` epochs.
    """

    name = "logistic-regression"
    free = ("watched", "ridges", "instances")

    boundaries: tuple[str, ...] = ("F1", "F2")
    architectures: tuple[str, ...] = ("tanh-128", "tanh-64", "relu-128")
    evolving: tuple[str, ...] = ("tanh-128",)
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

    smoke = {
        **{"networks": 2, "watched": 1, "lr": 1e-3, "epochs": 60, "checkpoints": (0, 20, 60)},
        **{"ridge": 1e-3, "ridges": (1e-3, 1.0), "instances": 30},
    }
    statements = claims_of(logistic_claims)
    tasks, task, key, shape = "boundaries", Task, "runs", {"in_features": 2, "classes": 2}

    @property
    def moments(self) -> tuple[int, ...]:
        return self.checkpoints

    def scalar(self, model: nn.Module) -> nn.Module:
        """The log-odds: the output of class 1 minus that of class 0."""
        return models.contrast(model, 1, 0)

    def trained(self, run: Run, cell: Cell, *, unstopped: bool = False) -> Trained:
        """The networks of one cell until the stop; or the watched ones without it, at every checkpoint."""
        watched = min(self.watched, self.networks)
        if unstopped:
            how: dict[str, Any] = {"watched": watched, "moments": self.checkpoints}
            return self.ensemble(run, cell, f"{cell}/unstopped", watched, epochs=self.epochs, **how)
        stop = StopWhen(accuracy=self.accuracy)
        return self.ensemble(run, cell, str(cell), self.networks, epochs=self.epochs, stop=stop)

    @leg("instances")
    def corner_instances(self, run: Run) -> dict[str, Any]:
        return corner_instances(self.instances, run.seed)

    @leg("narrow")
    def corner_networks(self, run: Run) -> dict[str, Any]:
        return corner_networks(self.instances, run)

    @leg("training/{}/unstopped", over=lambda self: self.evolving_cells)
    def training_without_stop(self, run: Run, cell: Cell) -> dict[str, Any]:
        self.trained(run, cell, unstopped=True)
        return dict(run.record.metrics[f"training/{cell}/unstopped"])

    @leg("runs/{}/{}", over=lambda self: product(self.cells(), nets.blocks(self.networks)))
    def final(self, run: Run, cell: Cell, block: str) -> dict[str, Any]:
        """Everything that is measured on some trained networks."""

        def measured(task: Task, machines: Machines) -> dict[str, Any]:
            found, scores, features = measure(task, machines)
            ck, ntk = (scores[name].reshape(task.shape) for name in ("ck", "ntk"))
            bounds = bound.logistic_bounds(ck, ntk, task.labels, refinement=self.refinement)
            found |= bounds.told()
            # the inequalities as they stand, also where the ridge breaks Eq. 52, which the proofs use
            for theorem, first, second in (("5.1", bounds.c1, bounds.c2), ("5.2", bounds.d1, bounds.d2)):
                sides = ((bounds.test_ntk, first, bounds.test_ck), (bounds.test_ck, second, bounds.test_ntk))
                found[f"inequalities of {theorem}"] = all(math.isinf(c) or a <= c * b for a, c, b in sides)
            return found | {"margin": margin(features[task.nodes], task.train_labels)}

        ensemble = self.trained(run, cell)
        epochs = {"epochs": [int(ensemble.steps[member]) for member in nets.members(block)]}
        return nets.columns(self.each(cell, ensemble.final, nets.members(block), measured)) | epochs

    @leg("ridges/{}/{}", over=lambda self: product(self.cells(), self.watched_blocks))
    def by_ridge(self, run: Run, cell: Cell, block: str) -> dict[str, Any]:
        """Test loss and accuracy of both machines for every ridge."""

        def measured(task: Task, machines: Machines) -> dict[str, Any]:
            row: dict[str, Any] = {}
            for name, kernel in kernels(task, machines)[0].items():
                each = [task.measures(newton(task, kernel, ridge)[0]) for ridge in self.ridges]
                row |= {f"{name} {key}": [one[key] for one in each] for key in MEASURES}
            return row

        return nets.columns(self.each(cell, self.trained(run, cell).final, nets.members(block), measured))

    @leg("unridged/{}/{}", over=lambda self: product(self.cells(), self.watched_blocks))
    def without_ridge(self, run: Run, cell: Cell, block: str) -> dict[str, Any]:
        """Newton's method on Eq. 15 as it stands: where it stopped, test loss and accuracy of both machines."""

        def measured(task: Task, machines: Machines) -> dict[str, Any]:
            row = _named("network", task.measures(machines.outputs().numpy()))
            for name, kernel in kernels(task, machines)[0].items():
                alpha, steps, slope = plain_newton(kernel[task.nodes].numpy(), task.train_labels)
                row |= _named(name, task.measures(kernel.numpy() @ alpha))
                row |= _named(name, {"steps": steps, "slope": slope})
            return row

        return nets.columns(self.each(cell, self.trained(run, cell).final, nets.members(block), measured))

    @leg("evolution/{}/{}", over=lambda self: product(self.evolving_cells, self.checkpoints))
    def at_checkpoint(self, run: Run, cell: Cell, step: int) -> dict[str, Any]:
        """Of the watched networks after some epochs."""
        params = self.trained(run, cell, unstopped=True).path[step]
        rows = nets.columns([found for found, _, _ in self.at_moment(cell, params, measure)])
        return {name: values for name, values in rows.items() if name.endswith(("loss", "accuracy"))}

    @figure
    def every_run(self, record: Record) -> dict[str, Figure]:
        figures: dict[str, Figure] = {}
        for number, network in ((8, SMOOTH), (9, NARROW), (10, KINKED)):
            figures[f"figure-{number}-{network}"], panels = self._panels()
            for axis, boundary, measure in panels:
                rows = nets.joined(record, f"runs/{boundary}/{network}")
                for name in NAMES if rows else ():
                    axis.plot(rows[f"{name} {measure}"], "o", markersize=2.5, **nets.STYLES[name])
                _finish(axis, f"{boundary}, {network}", "network", measure, drawn=bool(rows))
        return figures

    @figure
    def through_training(self, record: Record) -> dict[str, Figure]:
        drawn, panels = self._panels()
        for axis, boundary, measure in panels:
            found = self.evolution(record, Cell(boundary, SMOOTH))
            for name in NAMES if found else ():
                values = found[f"{name} {measure}"]
                axis.plot(self.checkpoints, values, "o-", markersize=3, linewidth=1.2, **nets.STYLES[name])
            _finish(axis, f"{boundary}, {SMOOTH}", "epoch", measure, drawn=bool(found))
        return {"figure-11-evolution": drawn}

    @figure
    def against_ridges(self, record: Record) -> dict[str, Figure]:
        """Medians over the watched networks, tanh solid and ReLU dashed."""
        ridges, panels = self._panels()
        for axis, boundary, measure in panels:
            drawn = False
            for network, style in ((SMOOTH, "o-"), (KINKED, "s--")):
                rows = nets.joined(record, f"ridges/{boundary}/{network}")
                for name in ("ntk", "ck") if rows else ():
                    middle = np.median(np.asarray(rows[f"{name} {measure}"]), axis=0)
                    drawn_as = {**nets.STYLES[name], "label": f"{nets.LABELS[name]}, {network}"}
                    axis.plot(self.ridges, middle, style, markersize=3, **drawn_as)
                drawn |= bool(rows)
            axis.set_xscale("log")
            _finish(axis, boundary, "ridge", measure, drawn=drawn)
        return {"ridges": ridges}

    def _panels(self) -> tuple[Figure, list[tuple[Any, str, str]]]:
        """A figure with one panel for each boundary and measure."""
        drawn, axes = drawing.canvas(2, len(self.boundaries), width=4.2, height=3.0)
        which = [(boundary, measure) for measure in MEASURES for boundary in self.boundaries]
        return drawn, [(axis, *names) for axis, names in zip(axes, which)]


def _finish(axis: Any, title: str, x: str, measure: str, *, drawn: bool) -> None:
    nets.finish(axis, title, x, MEASURES[measure], drawn=drawn, log=measure == "loss")


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


def margin(features: Tensor, labels: np.ndarray) -> float:
    """`max_β min_i ±β·u_i` over |β_k| ≤ 1, u the features' left singular vectors: positive where they separate the classes.

    A linear programme; the result is computed again from its solution.
    """
    left, values, _ = torch.linalg.svd(features, full_matrices=False)
    kept = values > max(features.shape) * torch.finfo(torch.float64).eps * values[0]
    signed = (2 * labels - 1)[:, None] * left[:, kept].numpy()
    count = signed.shape[1]
    found = linprog(
        np.append(np.zeros(count), -1.0),
        A_ub=np.hstack([-signed, np.ones((len(signed), 1))]),
        b_ub=np.zeros(len(signed)),
        bounds=[(-1, 1)] * count + [(None, None)],
        method="highs",
    )
    if not found.success:
        return float("nan")
    return float((signed @ found.x[:count]).min())


def plain_newton(kernel: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int, float]:
    """Coefficients α, steps taken and the norm of the gradient: ∇_α of Eq. 15 by full Newton steps of least squares.

    Stopped once the gradient is below 1e-6, or after 50 steps: where the classes are separable the loss has no minimum, and
    the coefficients where it stops are those of the stopping rule.
    """
    own = (kernel + kernel.T) / 2
    alpha = np.zeros(len(own))
    for step in range(PLAIN_STEPS + 1):
        p = expit(own @ alpha)
        slope = own @ (p - labels)
        size = float(np.linalg.norm(slope))
        if size < PLAIN_SLOPE or step == PLAIN_STEPS:
            break
        alpha = alpha - np.linalg.lstsq(own @ ((p * (1 - p))[:, None] * own), slope, rcond=None)[0]
    return alpha, step, size


def corner_instances(count: int, seed: int) -> dict[str, Any]:
    """Fits of degree 1 and 2 to half-planes with flipped labels: how often the corner condition holds, and both theorems.

    Where a network separates the classes its signed score is largest beside the boundary, inside a cell. So training labels
    are flipped at random, which leaves misclassified corners; the other test nodes have the labels the first fit gives them.
    """
    x1, x2 = GRID
    columns = np.stack([np.ones_like(x1), x1, x2, x1**2, x1 * x2], -1)
    spans = [
        (columns[..., :width].reshape(-1, width), columns[NODES][..., :width].reshape(-1, width)) for width in (3, 5)
    ]
    kernels = [torch.from_numpy(phi @ own.T) for phi, own in spans]
    return _corners(_fitted(kernels, own) for own in flipped(count, seed, "corner instances"))


def corner_networks(count: int, run: Run) -> dict[str, Any]:
    """The same for the CK and NTK of networks of one hidden tanh unit, each trained on labels of its own."""
    points = torch.from_numpy(np.stack(GRID, -1).reshape(-1, 2))
    at = torch.arange(len(points)).reshape(GRID[0].shape)[NODES].flatten()
    labels = flipped(count, run.seed, "corner networks")
    parts = [Part(points[at].float(), torch.from_numpy(own.ravel())) for own in labels]
    build = partial(models.build, "mlp", in_features=2, classes=2, widths=1, depth=1, activation="tanh")
    how: dict[str, Any] = {"optimizer": "adam", "lr": 1e-2, "epochs": CORNER_EPOCHS, "loss": "cross_entropy"}
    seeds = range(run.seed, run.seed + count)
    ensemble = training.fit_ensemble(lambda seed: build(seed=seed), parts, seeds=list(seeds), device=run.device, **how)
    machines = Machines(build(seed=0), points, at, lambda model: models.contrast(model, 1, 0))
    found = []
    for member, own in enumerate(labels):
        machines.wear(ensemble.params, member)
        features = machines.ck_features()
        found.append(_fitted([features @ features[at].T, machines.ntk()], own))
    return _corners(found)


def flipped(count: int, seed: int, purpose: str) -> list[np.ndarray]:
    """Labels of the training nodes: half-planes, some flipped at random, both classes among them."""
    random = numpy_generator(seed, purpose)
    found: list[np.ndarray] = []
    while len(found) < count:
        angle, shift = random.uniform(0, 2 * np.pi), random.uniform(-0.7, 0.7)
        labels = np.cos(angle) * GRID[0] + np.sin(angle) * GRID[1] > shift
        own = labels[NODES] ^ (random.random(labels[NODES].shape) < FLIPPED)
        if 0 < own.mean() < 1:
            found.append(own.astype(np.int64))
    return found


def _corners(bounds: Iterable[bound.LogisticBounds]) -> dict[str, Any]:
    found = list(bounds)
    said = [one for one in found if one.theorem_5_1 is not None]
    second = [one for one in found if one.theorem_5_2 is not None]
    return {
        "drawn": len(found),
        "corner": len(said),
        "5.1 holds": sum(bool(one.theorem_5_1) for one in said),
        "5.1 holds as printed": sum(bool(one.theorem_5_1_printed) for one in said),
        "matching": len(second),
        "5.2 holds": sum(bool(one.theorem_5_2) for one in second),
        "5.2 holds as printed": sum(bool(one.theorem_5_2_printed) for one in second),
    }


def _fitted(kernels: Sequence[Tensor], own_labels: np.ndarray) -> bound.LogisticBounds:
    """Both machines fitted to the training nodes; the other test nodes have the labels that the first gives them."""
    scores, at = [], torch.arange(GRID[0].size).reshape(GRID[0].shape)[NODES].flatten()
    for kernel in kernels:
        solver = KernelLogistic(2 * RIDGE / len(at), multi_class="ovr", fit_intercept=False, max_iter=NEWTON_STEPS)
        fitted = solver.fit(kernel[at], own_labels.ravel())
        scores.append(fitted.decision_function(kernel).reshape(GRID[0].shape))
    labels = (scores[0] > 0).astype(int)
    labels[NODES] = own_labels
    return bound.logistic_bounds(scores[0], scores[1], labels, refinement=TAU)

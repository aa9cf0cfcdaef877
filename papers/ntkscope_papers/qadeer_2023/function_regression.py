"""Qadeer et al., Figures 3 to 7 and Theorems 4.1, 4.2: smooth functions by networks, by their NTK, CK and CK features."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ntkscope.core import Part, Record, numpy_generator
from ntkscope.linalg import NumericalWarning
from ntkscope.machines import retrain_last_layer
from ntkscope.surrogates import ConjugateLeastSquares, MinimumNorm
from ntkscope_papers.framework import Run, claims_of, drawing, figure, leg
from ntkscope_papers.qadeer_2023 import networks as nets
from ntkscope_papers.qadeer_2023 import regression_claims
from ntkscope_papers.qadeer_2023.grids import target_function
from ntkscope_papers.qadeer_2023.networks import KINKED, SMOOTH, Cell, GridExperiment, GridTask, Machines, Trained
from ntkscope_papers.qadeer_2023.regression_bounds import regression_bounds, trapezoid_norm
from ntkscope_papers.qadeer_2023.regression_claims import WIDE

STEPS_ACROSS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
LARGEST_KINKS = 16
TAU, CELLS = 3, 6  # of the random instances


class Task(GridTask):
    """One target; every `refinement`-th test node is a training node."""

    source = staticmethod(target_function)

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


@dataclass(frozen=True)
class FunctionRegression(GridExperiment):
    """Qadeer et al., Figures 3-7, Theorems 4.1, 4.2: networks on smooth functions against NTK, CK and CK features.

    `watched`: networks followed through training every `every` steps, and solved with all `cutoffs` at the end.
    """

    name = "function-regression"
    free = ("watched", "cutoffs", "instances")

    targets: tuple[str, ...] = ("f1", "f2", "f3")
    architectures: tuple[str, ...] = ("tanh-128", "tanh-256", "relu-128")
    evolving: tuple[str, ...] = ("tanh-128", "relu-128")
    depth: int = 3
    intervals: int = 200
    refinement: int = 3
    steps: int = 2400
    every: int = 200
    cutoffs: tuple[float, ...] = (1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
    instances: int = 2000

    smoke = {
        **{"targets": ("f1", "f2"), "networks": 2, "watched": 1, "intervals": 40, "steps": 150, "every": 50},
        **{"cutoffs": (1e-15, 1e-12, 1e-9), "instances": 50},
    }
    statements = claims_of(regression_claims)
    tasks, task, key, shape = "targets", Task, "errors", {"in_features": 1}

    @property
    def moments(self) -> tuple[int, ...]:
        return tuple(range(0, self.steps + 1, self.every))

    def mean(self, values: Any) -> Any:
        return np.exp(np.mean(np.log(values)))

    def trained(self, run: Run, cell: Cell) -> Trained:
        how: dict[str, Any] = {"loss": "mse", "weights": "weights", "steps": self.steps}
        if cell.network in self.evolving:
            how |= {"watched": self.watched, "moments": self.moments}
        return self.ensemble(run, cell, str(cell), self.networks, **how)

    @leg("instances")
    def monotone_instances(self, run: Run) -> dict[str, Any]:
        return monotone_instances(self.instances, run.seed)

    @leg("errors/{}/{}", over=lambda self: product(self.cells(), nets.blocks(self.networks)))
    def errors(self, run: Run, cell: Cell, block: str) -> dict[str, Any]:
        """Everything that is measured on some trained networks."""

        def measure(task: Task, machines: Machines) -> dict[str, Any]:
            found, values = errors(task, machines)
            bounds = regression_bounds(task.values, values["ck"], values["ntk"], refinement=self.refinement)
            found |= bounds.told()
            # both inequalities of Theorem 4.2 as they stand, also where rounding breaks Eq. 38, which its proof uses
            first = bounds.test_ntk**2 <= bounds.d1 * bounds.test_ck**2 + bounds.slack[1]
            second = math.isinf(bounds.d2) or bounds.test_ck**2 <= bounds.d2 * bounds.test_ntk**2 + bounds.slack[0]
            found["inequalities of 4.2"] = bool(first and second)
            if cell.network == SMOOTH:
                solved = retrain_last_layer(machines.model, task.train, weights=task.weights)
                with torch.no_grad():
                    found["retrained"] = task.errors(solved(task.inputs)[:, 0].numpy())[0]
            return found

        return nets.columns(self.each(cell, self.trained(run, cell).final, nets.members(block), measure))

    @leg("narrow/{}", over=lambda self: self.targets)
    def narrow(self, run: Run, target: str) -> dict[str, Any]:
        """Theorem 4.1 on networks of one hidden ReLU unit, whose kernels span so little that residuals can be monotone."""
        one, cell = replace(self, depth=1), Cell(target, "relu-1")
        how: dict[str, Any] = {"loss": "mse", "weights": "weights", "steps": self.steps}
        ensemble = one.ensemble(run, cell, str(cell), self.networks, **how)

        def measure(task: Task, machines: Machines) -> dict[str, Any]:
            found, values = errors(task, machines)
            bounds = regression_bounds(task.values, values["ck"], values["ntk"], refinement=self.refinement)
            return {"theorem_4_1": bounds.theorem_4_1, "ck rank": found["ck rank"], "ntk rank": found["ntk rank"]}

        return nets.columns(one.each(cell, ensemble.final, range(self.networks), measure))

    @leg("cutoffs/{}/{}", over=lambda self: product(self.cells(), self.watched_blocks))
    def by_cutoff(self, run: Run, cell: Cell, block: str) -> dict[str, Any]:
        """Test errors for every cut-off: of eigenvalues for the kernels, of singular values for the features."""

        def measure(task: Task, machines: Machines) -> dict[str, Any]:
            fits = Fits.of(task, machines)
            row = {n: [task.errors(fits.kernel_machine(n, c)[0])[0] for c in self.cutoffs] for n in ("ntk", "ck")}
            return row | {"ckj": [task.errors(fits.jacobian_machine(c)[0])[0] for c in self.cutoffs]}

        return nets.columns(self.each(cell, self.trained(run, cell).final, nets.members(block), measure))

    @leg("evolution/{}/{}", over=lambda self: product(self.evolving_cells, self.moments))
    def at_step(self, run: Run, cell: Cell, step: int) -> dict[str, Any]:
        """Test errors of the watched networks at one step of training."""
        rows = [found for found, _ in self.at_moment(cell, self.trained(run, cell).path[step], errors)]
        return nets.columns([{name: row[name] for name in nets.LABELS} for row in rows])

    @leg("kinks/{}", over=lambda self: [cell for cell in self.cells() if cell.activation == "relu"])
    def kinks(self, run: Run, cell: Cell) -> dict[str, Any]:
        """How far tangent and last-layer features of the first network are apart on both sides of a kink of its first layer.

        Of the kinks inside the interval the one with the largest distance of tangent features at the smallest step.
        """
        machines = self.machines(Task(self, cell.task), cell)
        machines.wear(self.trained(run, cell).final, 0)
        layer: Any = machines.model.get_submodule("layer1")
        at = (-layer.bias / layer.weight[:, 0]).detach()
        at = at[at.abs() < 0.95][:LARGEST_KINKS]
        left, right = torch.arange(len(at)), torch.arange(len(at)) + len(at)
        found: dict[str, list[list[float]]] = {"ntk": [], "ck": []}
        for step in STEPS_ACROSS:
            both = torch.cat([at - step, at + step])[:, None]
            near = Machines(machines.model, both, torch.arange(len(both)))
            kernel, features = near.ntk(), near.ck_features()
            squared = kernel.diagonal()[left] + kernel.diagonal()[right] - 2 * kernel[left, right]
            found["ntk"].append(squared.clamp_min(0).sqrt().tolist())
            found["ck"].append((features[left] - features[right]).norm(dim=1).tolist())
        largest = int(np.argmax(found["ntk"][-1]))
        return {"steps": list(STEPS_ACROSS)} | {name: [row[largest] for row in rows] for name, rows in found.items()}

    @figure
    def runs(self, record: Record) -> dict[str, Figure]:
        """Errors of every run."""
        figures: dict[str, Figure] = {}
        for number, network in ((3, SMOOTH), (5, WIDE), (6, KINKED)):
            figures[f"figure-{number}-{network}"], axes = self._panels()
            for axis, target in zip(axes, self.targets):
                rows = nets.joined(record, f"errors/{target}/{network}")
                for name, style in nets.STYLES.items() if rows else ():
                    axis.plot(rows[name], "o", markersize=2.5, **style)
                nets.finish(axis, f"{target}, {network}", "network", "test error", drawn=bool(rows))
        return figures

    @figure
    def through_training(self, record: Record) -> dict[str, Figure]:
        figures: dict[str, Figure] = {}
        for name, network in (("figure-4-evolution-tanh", SMOOTH), ("figure-7-evolution-relu", KINKED)):
            figures[name], axes = self._panels()
            for axis, target in zip(axes, self.targets):
                found = self.evolution(record, Cell(target, network))
                if found:
                    _lines(axis, self.moments, found, nets.LABELS)
                nets.finish(axis, f"{target}, {network}", "epoch", "test error", drawn=bool(found))
        return figures

    @figure
    def against_cutoffs(self, record: Record) -> dict[str, Figure]:
        """Medians over the watched tanh networks; the default cut-off is dotted."""
        drawn, axes = self._panels()
        for axis, target in zip(axes, self.targets):
            rows = nets.joined(record, f"cutoffs/{target}/{SMOOTH}")
            if rows:
                middle = {name: np.median(np.asarray(rows[name]), axis=0) for name in rows}
                _lines(axis, self.cutoffs, middle, ("ntk", "ck", "ckj"))
                own = np.median(nets.joined(record, f"errors/{target}/{SMOOTH}")["network"])
                axis.axhline(own, linewidth=1, linestyle="--", **nets.STYLES["network"])
                axis.axvline((self.intervals + 1) * np.finfo(float).eps, color="#999999", linewidth=1, linestyle=":")
                axis.set_xscale("log")
            nets.finish(axis, f"{target}, {SMOOTH}", "relative cut-off", "test error", drawn=bool(rows))
        return {"cut-offs": drawn}

    def _panels(self) -> tuple[Figure, list[Any]]:
        return drawing.canvas(1, len(self.targets), width=3.8, height=3.2)


def _lines(axis: Any, at: Any, values: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        axis.plot(at, values[name], "o-", markersize=3, linewidth=1.2, **nets.STYLES[name])


@dataclass(frozen=True, eq=False)
class Fits:
    """Kernels of one network, and the machines fitted on them."""

    task: Task
    ntk: Tensor
    features: Tensor

    @classmethod
    def of(cls, task: Task, machines: Machines) -> Fits:
        return cls(task, machines.ntk(), machines.ck_features())

    def kernel_machine(self, which: str, cutoff: float | None = None) -> tuple[np.ndarray, int]:
        """Eq. 14 with the NTK or the CK: values at the test nodes, and the rank kept; the cut-off is (N + 1) ε where None."""
        kernel = self.ntk if which == "ntk" else self.features @ self.features[self.task.nodes].T
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # negative eigenvalues at the smallest cut-offs
            fitted = MinimumNorm(cutoff).fit(kernel[self.task.nodes], self.task.train.y, self.task.weights)
        return fitted.predict(kernel), int(fitted.rank_)

    def jacobian_machine(self, cutoff: float | None = None) -> tuple[np.ndarray, int]:
        """CKJ: least squares on the CK's features themselves."""
        solver = ConjugateLeastSquares(tol=cutoff)
        fitted = solver.fit(self.features[self.task.nodes], self.task.train.y, self.task.weights)
        return fitted.predict(self.features), int(fitted.rank_)


def errors(task: Task, machines: Machines) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Test and training errors of the network and its three machines, ranks; and the fitted values."""
    fits = Fits.of(task, machines)
    fitted = {name: fits.kernel_machine(name) for name in ("ntk", "ck")} | {"ckj": fits.jacobian_machine()}
    values = {"network": machines.outputs().numpy()} | {name: one for name, (one, _) in fitted.items()}
    found: dict[str, Any] = {}
    for name, one in values.items():
        found[name], found[f"{name} train"] = task.errors(one)
    return found | {f"{name} rank": rank for name, (_, rank) in fitted.items()}, values


def monotone_instances(count: int, seed: int) -> dict[str, Any]:
    """Polynomials of degree 1 and 2 fitted to random targets: how many have the monotone residuals of Theorem 4.1.

    The projections are exact to rounding (least squares on orthonormal columns), β is far below 1.
    """
    random = numpy_generator(seed, "monotone instances")
    x = np.linspace(-1, 1, TAU * CELLS + 1)
    roots = np.sqrt(np.where(np.arange(CELLS + 1) % CELLS == 0, 0.5, 1.0))
    powers = x[:, None] ** np.arange(3)
    found = []
    for _ in range(count):
        slope, shift, size = random.normal(size=3)
        f = np.exp(slope * x) + size * np.tanh(3 * (x - shift)) + random.normal() * np.abs(x - random.uniform(-1, 1))
        fits = [_projected(powers[:, :width], f, roots) for width in (2, 3)]
        found.append(regression_bounds(f, fits[0], fits[1], refinement=TAU))
    said = [one for one in found if one.theorem_4_1 is not None]
    return {
        "drawn": count,
        "monotone": len(said),
        "hold": sum(bool(one.theorem_4_1) for one in said),
        "largest ck/ntk over c2": max((one.test_ck / one.test_ntk / one.c2 for one in said), default=0.0),
        "largest ntk/ck over c1": max((one.test_ntk / one.test_ck / one.c1 for one in said), default=0.0),
        "4.2 holds": sum(bool(one.theorem_4_2) for one in found if one.theorem_4_2 is not None),
        "4.2 said": sum(one.theorem_4_2 is not None for one in found),
    }


def _projected(features: np.ndarray, f: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """The best fit in the trapezoid product on the training nodes, at every test node."""
    weights: np.ndarray = np.linalg.lstsq(features[::TAU] * roots[:, None], roots * f[::TAU], rcond=None)[0]
    values: np.ndarray = features @ weights
    return values

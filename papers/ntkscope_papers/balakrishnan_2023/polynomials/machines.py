"""Kernel machines on polynomials of a hidden direction: ridge regression and both SVRs with the NTK or a Gaussian kernel.

Kernels are divided by their mean diagonal, so that C means the same for all. C (and the Gaussian's width) is the one with the
smallest validation MSE among fits on the first training items; the machine itself is fitted on all of them. With the NTK the
intercept is penalised, as scikit-learn's LinearSVR on gradients has it; with the Gaussian kernel it is free, as in SVR.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ntkscope.kernels import Tangent
from ntkscope.linalg import NumericalWarning
from ntkscope.surrogates import KernelRidge, KernelSVR
from ntkscope.surrogates.metrics.radial import Radial, squared_distances
from ntkscope_papers.balakrishnan_2023.polynomials.data import PARTS, Draw, Task
from ntkscope_papers.balakrishnan_2023.polynomials.networks import PolynomialRuns, scores

LOSSES = ("ridge", "svr", "squared svr")
GAP = 1e-4  # relative duality gap
Rows = Mapping[str, slice]


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs and targets of all parts in a row, where each part's rows are, v of the test items, and the degree."""

    x: Float64[Tensor, "n d"]
    y: Float64[Tensor, " n"]
    rows: Rows
    v: Float64[np.ndarray, " m"]
    degree: int

    @classmethod
    def of(cls, drawn: Draw, task: Task, device: torch.device, noise: float | None = None) -> Problem:
        """Of a task, in double precision; with `noise` the targets are those that networks learn."""
        rows, start = {}, 0
        for name in PARTS:
            rows[name] = slice(start, start + len(drawn.v[name]))
            start = rows[name].stop
        targets = [drawn.clean(name, task) if noise is None else drawn.part(name, task, noise).y for name in PARTS]
        x, y = torch.cat([drawn.x[name] for name in PARTS]), torch.cat(targets)
        v = drawn.v["test"].double().cpu().numpy()
        return cls(x.to(device, torch.float64), y.to(device, torch.float64), rows, v, task.degree)

    def targets(self, name: str) -> Float64[np.ndarray, " n"]:
        found: Float64[np.ndarray, " n"] = self.y[self.rows[name]].cpu().numpy()
        return found


def tangent_kernel(tangent: Tangent, x: Float64[Tensor, "n d"], scaled: bool = True) -> Float64[Tensor, "n n"]:
    """The NTK of a network with one output, divided by its mean diagonal unless it is to stay as it is."""
    gram = tangent.kernel("entk", x).dense()
    return gram / gram.diagonal().mean() if scaled else gram


def fitted_machine(
    loss: str, C: float, K: Float64[Tensor, "n n"], y: Float64[Tensor, " n"], epsilon: float, intercept: str
) -> Any:
    """A machine with `½‖f‖² + C Σ loss`, fitted. Ridge regression has no intercept: its targets are centred by the caller."""
    machine: Any
    if loss == "ridge":
        machine = KernelRidge(alpha=1 / (2 * C))
    else:
        name = ("squared_" if loss == "squared svr" else "") + "epsilon_insensitive"
        machine = KernelSVR(C, epsilon=epsilon, loss=name, intercept=intercept, solver="newton", tol=GAP)
    with warnings.catch_warnings():  # `gap_` is in the record
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", NumericalWarning)
        return machine.fit(K, y)


@dataclass(frozen=True, eq=False)
class Chosen:
    """A machine fitted on all training items, its C, and its predictions by part."""

    C: float
    gap: float
    predictions: Mapping[str, Float64[np.ndarray, " n"]]


def choose_strength(
    K: Float64[Tensor, "n n"], problem: Problem, loss: str, config: PolynomialRuns, intercept: str
) -> tuple[float, float]:
    """The C with the smallest validation MSE of a fit on the first training items, and that MSE."""
    some, held = slice(0, min(config.select_items, problem.rows["train"].stop)), problem.rows["validation"]
    shift = _shift(problem, loss)
    square, across = K[some, some].contiguous(), K[held, some].contiguous()
    errors = []
    for C in config.C:
        machine = fitted_machine(loss, C, square, problem.y[some] - shift, config.epsilon, intercept)
        errors.append(float(np.square(machine.predict(across) + shift - problem.targets("validation")).mean()))
    best = int(np.argmin(errors))
    return config.C[best], errors[best]


def fit_on_all(
    K: Float64[Tensor, "n n"], problem: Problem, loss: str, config: PolynomialRuns, intercept: str
) -> Chosen:
    """The machine with the best C, fitted on all training items."""
    C, _ = choose_strength(K, problem, loss, config, intercept)
    train, shift = problem.rows["train"], _shift(problem, loss)
    machine = fitted_machine(loss, C, K[train, train].contiguous(), problem.y[train] - shift, config.epsilon, intercept)
    predicted = machine.predict(K[:, train].contiguous()) + shift
    return Chosen(C, float(machine.gap_), {name: predicted[problem.rows[name]] for name in PARTS})


def _shift(problem: Problem, loss: str) -> float:
    return float(problem.y[problem.rows["train"]].mean()) if loss == "ridge" else 0.0


def told(found: Chosen, problem: Problem) -> dict[str, float]:
    """What a record keeps of a machine."""
    targets = {name: problem.targets(name) for name in PARTS}
    return {**scores(found.predictions, targets, problem.v, problem.degree), "C": found.C, "gap": found.gap}


def with_tangent_kernel(
    K: Float64[Tensor, "n n"], problem: Problem, config: PolynomialRuns, losses: Sequence[str] = LOSSES
) -> dict[str, Chosen]:
    """A machine for each loss."""
    return {loss: fit_on_all(K, problem, loss, config, "penalised") for loss in losses}


def with_gaussian_kernel(
    problem: Problem,
    config: PolynomialRuns,
    losses: Sequence[str] = LOSSES,
    raw: Sequence[float] | None = None,
) -> tuple[dict[str, Chosen], float]:
    """A machine for each loss, with the width that suits ridge regression best, and its gamma in units of 1 / (d var x).

    One width for all losses: choosing it by ridge regression costs one small factorisation per width and C. `raw`: gammas as
    they are, and scikit-learn's "scale", in place of the configuration's.
    """
    x = problem.x
    squares = squared_distances(x, x)
    unit = 1 / (x.shape[1] * float(x[problem.rows["train"]].var(correction=0)))

    def kernel(gamma: float) -> Tensor:
        return Radial("gaussian", (2 * gamma * unit) ** -0.5).values(squares)

    gammas = config.gammas if raw is None else (1.0, *(gamma / unit for gamma in raw))
    errors = [choose_strength(kernel(gamma), problem, "ridge", config, "free")[1] for gamma in gammas]
    best = gammas[int(np.argmin(errors))]
    K = kernel(best)
    return {loss: fit_on_all(K, problem, loss, config, "free") for loss in losses}, best


def by_authors(
    tangent: Tangent, problem: Problem, config: PolynomialRuns
) -> tuple[dict[str, Chosen], dict[str, Chosen], float]:
    """Both SVRs as in the public code: its grids, no scale of the NTK, ε = 0 with that and 0.1 with the Gaussian kernel."""
    config = replace(config, C=tuple(10.0**k for k in range(-4, 3)), epsilon=0.0)
    ntk = with_tangent_kernel(tangent_kernel(tangent, problem.x, scaled=False), problem, config, ("svr",))
    powers = [10.0**k for k in range(-4, 5)]
    return ntk, *with_gaussian_kernel(problem, replace(config, epsilon=0.1), ("svr",), powers)

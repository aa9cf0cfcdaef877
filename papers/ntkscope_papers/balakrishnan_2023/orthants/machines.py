"""Support vector machines on orthant shells: linear, RBF, and on the tangent kernel of a network's logit or probability.

The kernel of the probability σ(f) is that of the logit between slopes, `σ'(f(x)) K(x, x') σ'(f(x'))`: one kernel serves both
readings. A machine on it is linear in the parameters, so a test item costs one derivative along `w = Σ_i c_i ∇f(x_i)`, not a
row of a kernel.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn
from torch.func import functional_call

from ntkscope.core import Params, Part, Split
from ntkscope.kernels import kernel
from ntkscope.linalg import DenseGram, Gram, NumericalWarning
from ntkscope.surrogates import KernelSVM
from ntkscope.surrogates.metrics.radial import Radial, squared_distances
from ntkscope.tangent.operators.forward_mode import jvp
from ntkscope_papers.balakrishnan_2023.orthants.data import SHARE, distances_from, held_out, some_of_each

READINGS = ("logit", "probability")
LINEAR_SVC = {"loss": "squared_hinge", "intercept": "penalised"}
SVC = {"loss": "hinge", "intercept": "free"}
CHOOSING, GAP = 1e-3, 1e-4  # duality gaps, relative: while C is chosen, and of the machine that is measured
BLOCK = 8192


@dataclass(frozen=True, eq=False)
class Machine:
    """Dual coefficients of the training items, the intercept, and how the machine was made."""

    coef: Float64[Tensor, " n"]
    intercept: float
    told: dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """How C is chosen: among `grid`, on `per_class` items of each class and orthant, a fifth of them held out."""

    grid: tuple[float, ...]
    per_class: int
    seed: int

    def rows(self, part: Part) -> tuple[Int64[Tensor, " f"], Int64[Tensor, " v"]]:
        """The items that a machine is fitted on, and those it is scored on."""
        places = some_of_each(part, self.per_class, self.seed)
        extras = {**part.extras, "place": torch.arange(len(part))}
        fit, held = held_out(Part(part.x, part.y, extras).take(places), SHARE, self.seed)
        return fit.extras["place"], held.extras["place"]


def fitted(gram: Gram, y: Tensor, C: float, tol: float, how: dict[str, Any]) -> KernelSVM:
    """One machine by Newton's method; one that stops early says so by its gap, which the record keeps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", NumericalWarning)  # the jitter is in the record
        return KernelSVM(C, solver="newton", tol=tol, **how).fit(gram, y.numpy())


def chosen_machine(
    kernels: dict[str, Callable[[], Gram]], part: Part, choice: Choice, how: dict[str, str]
) -> tuple[str, Machine]:
    """The kernel and the machine whose C and kernel classify held-out items best; of equals the smallest C.

    Each kernel is made when it is its turn, and again for the last fit if several compete.
    """
    fit, held = choice.rows(part)
    scores: dict[tuple[str, float], float] = {}
    gram: Gram | None = None
    for name, make in kernels.items():
        gram = None  # the one before is released first
        gram = make()
        inner, outer = gram[fit, fit], gram[held, fit]
        for C in choice.grid:
            found = fitted(inner, part.y[fit], C, CHOOSING, how)
            scores[name, C] = float((found.predict(outer) == part.y[held].numpy()).mean())
    name, C = max(scores, key=lambda key: scores[key])
    if gram is None or name != list(kernels)[-1]:
        gram = None
        gram = kernels[name]()
    svm = fitted(gram, part.y, C, GAP, how)
    told = {
        "C": C,
        "kernel": name,
        "held-out accuracy": {f"{key[0]}, C={key[1]:g}": round(value, 4) for key, value in scores.items()},
        "gap": float(f"{svm.gap_:.3g}"),
        "steps": int(svm.n_iter_),
        "support vectors": len(svm.support_),
        "jitter": float(f"{svm.jitter_:.3g}"),
        "items": len(part),
    }
    c = torch.from_numpy(svm.coef_[1] - svm.coef_[0]).to(gram.device)
    return name, Machine(c, float(svm.intercept_[1] - svm.intercept_[0]), told)


def scores_in_blocks(x: Tensor, device: torch.device, score: Callable[[Tensor], Tensor]) -> Tensor:
    """`score` of some items at a time, in double precision on the device."""
    return torch.cat([score(piece.to(device, torch.float64)) for piece in x.split(BLOCK)])


# -- kernels of the inputs ----------------------------------------------------------------------------------------------


def linear_machine(part: Part, choice: Choice, device: torch.device) -> tuple[Machine, Callable[[Tensor], Tensor]]:
    """The linear machine, squared hinge with a penalised intercept, and its scores."""
    x = part.x.to(device, torch.float64)
    _, machine = chosen_machine({"linear": lambda: DenseGram(x @ x.T, symmetric=True)}, part, choice, LINEAR_SVC)
    direction = x.T @ machine.coef
    return machine, lambda z: scores_in_blocks(z, device, lambda piece: piece @ direction + machine.intercept)


def rbf_machine(
    part: Part, gammas: Sequence[float], choice: Choice, device: torch.device
) -> tuple[Machine, Callable[[Tensor], Tensor]]:
    """The machine on `exp(-γ|x - x'|²)`, hinge with a free intercept; `gammas` in units of 1 / (d · variance of the inputs)."""
    x = part.x.to(device, torch.float64)
    unit = 1 / (x.shape[1] * float(x.var(correction=0)))
    radial = {f"γ={gamma:g}": Radial("gaussian", 1 / math.sqrt(2 * gamma * unit)) for gamma in gammas}

    def gram(name: str) -> Gram:
        return DenseGram(radial[name].values(squared_distances(x, x)), symmetric=True)

    name, machine = chosen_machine({key: lambda key=key: gram(key) for key in radial}, part, choice, SVC)  # type: ignore[misc]

    def score(piece: Tensor) -> Tensor:
        return radial[name].values(squared_distances(piece, x)) @ machine.coef + machine.intercept

    return machine, lambda z: scores_in_blocks(z, device, score)


# -- tangent kernels ------------------------------------------------------------------------------------------------------


class TangentMachines:
    """Machines on one network's tangent kernel, of its logit or of its probability."""

    def __init__(self, model: nn.Module, part: Part, memory: str) -> None:
        self.model, self.part = copy.deepcopy(model).double(), part
        self.device = next(model.parameters()).device
        self.x = part.x.to(self.device, torch.float64)
        self.gram = kernel("trntk0", self.model, self.x, memory=memory)
        self.params = {name: p.detach() for name, p in self.model.named_parameters()}

    def slopes(self, reading: str, x: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """How the reading moves with the logit: 1, or σ'(f)."""
        with torch.no_grad():
            f = self.model(x)[:, 0]
        return torch.ones_like(f) if reading == "logit" else torch.sigmoid(f) * torch.sigmoid(-f)

    def machine(self, reading: str, choice: Choice, how: dict[str, str]) -> Machine:
        """The machine on the training items; its coefficients are those of gradients of the logit."""
        slopes = self.slopes(reading, self.x)
        gram = self.gram.scaled(slopes) if reading == "probability" else self.gram
        _, machine = chosen_machine({reading: lambda: gram}, self.part, choice, how)
        return Machine(slopes * machine.coef, machine.intercept, machine.told)

    def scores(self, reading: str, machine: Machine) -> Callable[[Tensor], Tensor]:
        """Scores of any inputs: the derivative of the logit along `Σ_i c_i ∇f(x_i)`, times the slope there."""
        direction = self._pulled(machine.coef)

        def score(piece: Tensor) -> Tensor:
            moved = jvp(lambda state: functional_call(self.model, state, (piece,))[:, 0], self.params, direction)[1]
            return self.slopes(reading, piece) * moved + machine.intercept

        return lambda z: scores_in_blocks(z, self.device, score)

    def attributions(self, machine: Machine, z: Tensor, memory: str) -> Float64[Tensor, "m n"]:
        """`c_i K(z, x_i)`, what each training item adds to the scores, up to the slope at z."""
        rows = kernel("trntk0", self.model, z.to(self.device, torch.float64), self.x, memory=memory)
        return rows.dense() * machine.coef

    def _pulled(self, coef: Float64[Tensor, " n"]) -> Params:
        leaves = {name: p.clone().requires_grad_() for name, p in self.params.items()}
        for rows in torch.arange(len(coef)).split(BLOCK):
            at = rows.to(self.device)
            (functional_call(self.model, leaves, (self.x[at],))[:, 0] @ coef[at]).backward()
        return {name: leaf.grad.detach() for name, leaf in leaves.items() if leaf.grad is not None}


def mass_by_distance(attributions: Float64[Tensor, "m n"], split: Split, part: Part, empty: int) -> dict[str, Any]:
    """Which orthants the scores in the empty one are made of: shares of Σ|c_i K| by distance, 1 … d, and of the items.

    `net`: what items at each distance add to the score of the right class, as a share of Σ|c_i K|; mean over test items.
    """
    dimension = int(np.log2(len(split.extras["signs"])))
    distance = torch.from_numpy(distances_from(empty, dimension))[part.extras["orthant"]].to(attributions.device)
    signs = torch.where(split.test.y == 1, 1.0, -1.0)[split.test.extras["orthant"] == empty].to(attributions)
    total = attributions.abs().sum(1)
    found: dict[str, Any] = {"mass": [], "net": [], "items": []}
    for k in range(1, dimension + 1):
        there = attributions[:, distance == k]
        found["mass"].append(round(float((there.abs().sum(1) / total).mean()), 6))
        found["net"].append(round(float((signs * there.sum(1) / total).mean()), 6))
        found["items"].append(round(float((distance == k).double().mean()), 6))
    return found

"""Support vector machines by sequential minimal optimisation, scikit-learn's SVC and SVR on a kernel formed as an array.

libsvm keeps rows of the kernel in single precision, so that its own tolerance says little below 1e-6. Where the duality gap is
not within `tol`, its free support vectors are moved to where their slopes are 0, by one system in double precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, SVR
from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.surrogates.solvers.margin_newton import Machine, Solve, settled, solver_of
from ntkscope.surrogates.solvers.margins import Margins

ATTEMPTS = 8
STEPS = 1_000_000


@dataclass(frozen=True, eq=False)
class UnitKernel:
    """A kernel as an array, divided by its mean diagonal: the tolerances of SVC and SVR assume about 1."""

    values: NDArray[np.float64]
    scale: float
    below: float
    """How far its smallest eigenvalue is below zero. It could lower the norm of the function by `below · ‖coef‖²`, which
    counts as gap."""

    def product(self, v: Tensor) -> Tensor:
        return torch.from_numpy(self.values) @ v

    def solver(self, active: Tensor, give: Tensor) -> Solve:
        return solver_of(torch.from_numpy(self.values)[active][:, active], give)

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> UnitKernel:
        scale = float(np.abs(np.diag(values)).mean()) or 1.0
        return cls(values if scale == 1.0 else values / scale, scale, _below_zero(values) / scale)


def class_machine(kernel: UnitKernel, margins: Margins, tol: float, max_iter: int) -> Machine:
    """One class against the others with the hinge loss, by SVC; `margins` is in the kernel's own units, on the CPU."""
    margins = margins.in_units(kernel.scale)
    signs, bound = margins.targets.numpy(), (margins.high - margins.low).numpy()

    def fitted(asked: float, left: int) -> Any:
        return SVC(C=1.0, kernel="precomputed", tol=asked, max_iter=left).fit(
            kernel.values, (signs > 0).astype(int), bound
        )

    def candidates(coef: NDArray[np.float64], near: float) -> list[Machine]:
        scores = kernel.values @ coef
        intercept = _best_intercept(scores, signs, bound, near)
        norm = float(coef @ scores)
        dual = float(np.abs(coef).sum()) - norm / 2 - abs(float(coef.sum())) * (1 + abs(intercept))
        margin = signs * (scores + intercept)
        least = float(margin.min())
        room = 1 + 1e-12  # separable points must not pay C for the rounding of their margin
        found = []
        for stretch in (1.0, room / least) if least > 0 else (1.0,):
            primal = stretch**2 * norm / 2 + float((bound * np.maximum(0, 1 - stretch * margin)).sum())
            above = max(0.0, primal - dual) + kernel.below * float(coef @ coef)
            found.append(_solved(stretch * coef, stretch * intercept, primal, above, kernel.scale))
        return found

    return _until(kernel, margins, fitted, candidates, tol, max_iter)


def tube_machine(kernel: UnitKernel, margins: Margins, tol: float, max_iter: int) -> Machine:
    """Regression with the ε-insensitive loss, by SVR; `margins` is in the kernel's own units, on the CPU."""
    margins = margins.in_units(kernel.scale)

    def fitted(asked: float, left: int) -> Any:
        machine = SVR(C=1.0, epsilon=margins.epsilon, kernel="precomputed", tol=asked, max_iter=left)
        return machine.fit(kernel.values, margins.targets.numpy(), margins.high.numpy())

    def candidates(coef: NDArray[np.float64], near: float) -> list[Machine]:
        b, value, above = margins.gap(torch.from_numpy(coef), torch.from_numpy(kernel.values @ coef), near)
        return [_solved(coef, b, value, above + kernel.below * float(coef @ coef), kernel.scale)]

    return _until(kernel, margins, fitted, candidates, tol, max_iter)


def _settled(
    kernel: UnitKernel, margins: Margins, coef: NDArray[np.float64], intercept: float
) -> list[NDArray[np.float64]]:
    """The coefficients once the free ones are settled; none where they have no solution."""
    u = torch.from_numpy(coef)
    free = ((u != 0) & (u > margins.low) & (u < margins.high)).nonzero()[:, 0]
    try:
        return [settled(margins, u, intercept, free, kernel).numpy()]
    except NumericalError:
        return []


def _solved(coef: NDArray[np.float64], intercept: float, value: float, above: float, scale: float) -> Machine:
    gap = above / value if value > 0 else 0.0 if above == 0 else np.inf
    return Machine(torch.from_numpy(coef / scale), intercept, value / scale, gap, 0)


def _until(
    kernel: UnitKernel,
    margins: Margins,
    fitted: Callable[[float, int], Any],
    candidates: Callable[[NDArray[np.float64], float], list[Machine]],
    tol: float,
    max_iter: int,
) -> Machine:
    """The best of several attempts: libsvm's own tolerance is lowered until the duality gap is within `tol`."""
    best, asked, steps = Machine(torch.zeros(0), 0.0, np.inf, np.inf, 0), min(1e-3, max(tol, 1e-12)), 0
    limit = left = STEPS if max_iter < 0 else max_iter
    for _ in range(ATTEMPTS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the gap reports it
            machine = fitted(asked, left)
        coef = np.zeros(len(margins.targets))
        coef[machine.support_] = machine.dual_coef_[0]
        coef = np.clip(coef, margins.low.numpy(), margins.high.numpy())
        found = candidates(coef, float(machine.intercept_[0]))
        if min(one.gap for one in found) > tol:
            near = found[0].intercept
            found += [one for sharp in _settled(kernel, margins, coef, near) for one in candidates(sharp, near)]
        steps += int(np.max(machine.n_iter_))
        best = min([best, *found], key=lambda one: one.gap)
        left = limit - steps
        if best.gap <= tol or left <= 0:
            break
        asked = max(1e-14, asked * min(0.1, 0.3 * tol / best.gap))
    return replace(best, steps=steps)


def _below_zero(values: NDArray[np.float64]) -> float:
    """How far the smallest eigenvalue is below zero; 0 where that is the rounding of float64 (a Cholesky factor says so)."""
    n = len(values)
    lift = n * np.finfo(np.float64).eps * float(np.abs(np.diag(values)).sum())
    matrix = torch.tensor(values)
    matrix.diagonal().add_(lift)
    if not int(torch.linalg.cholesky_ex(matrix).info):
        return 0.0
    return max(0.0, -float(torch.linalg.eigvalsh(matrix)[0]) + lift)


def _best_intercept(
    scores: NDArray[np.float64], signs: NDArray[np.float64], bound: NDArray[np.float64], near: float
) -> float:
    """The bias that minimises `Σ bound · hinge`, convex and piecewise linear; of several, that nearest `near`; O(n log n)."""
    places = signs - scores  # where a point's hinge sets in: below it for positive points, above for negative ones
    order = np.argsort(places, kind="stable")
    places, weights = places[order], bound[order]
    slopes = np.cumsum(weights) - weights[signs[order] > 0].sum()  # right of each place
    total = float(weights.sum())
    first = int(np.searchsorted(slopes, -1e-12 * total))
    last = int(np.searchsorted(slopes, 1e-12 * total, side="right"))
    low, high = places[min(first, len(places) - 1)], places[min(last, len(places) - 1)]
    return float(np.clip(near, low, high))

"""Support vector machine on a precomputed kernel, its dual coefficients laid out as one row per class."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

from ntkscope.core import UsageError
from ntkscope.surrogates._base import LinearClassifier
from ntkscope.surrogates._checks import class_labels, sample_weights, training_kernel, two_classes_weigh
from ntkscope.surrogates.registry import SURROGATES

ATTEMPTS = 8
STEPS = 1_000_000


@final
@SURROGATES.register("svm")
class KernelSVM(LinearClassifier):
    """scikit-learn's SVC(kernel="precomputed"), one-vs-rest: class c against all others, `½‖f_c‖² + C Σ_i hinge`.

    One-vs-rest rather than SVC's own one-vs-one, so that every class has one function linear in the kernel: `coef_`
    (classes, n), zero outside the support vectors, and `intercept_` (classes,). With two classes there is one function f
    and the logits are (-f/2, f/2). O(n²) to O(n³) per class; the kernel is formed as a NumPy array. `predict_proba` is the
    softmax of the scores: it ranks classes but is not calibrated.

    tol: how far above its minimum the objective of each class may be, relative to it, by the duality gap. max_iter: steps
    of SVC per class; -1 means a million. Fitted: `coef_`,
    `intercept_`, `support_`, `n_iter_`, `gap_` (the largest, relative), `converged_` (within `tol`; a ConvergenceWarning
    where not).

    >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> KernelSVM().fit(K, [0, 0, 1]).predict(K).tolist()
    [0, 0, 1]
    """

    def __init__(self, C: Any = 1.0, *, tol: Any = 1e-6, max_iter: Any = -1) -> None:
        self.C = C
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> KernelSVM:
        """Fit on the kernel (n, n), one label per row, and weights (n,) that multiply C."""
        if not (isinstance(self.C, int | float | np.number) and 0 < self.C < np.inf and self.tol > 0):
            raise UsageError(f"got C={self.C!r}, tol={self.tol!r}; expected finite numbers > 0")
        gram = training_kernel(self, K)
        self.classes_, numbers = class_labels(gram, y, "KernelSVM")
        weights = sample_weights(gram, sample_weight)
        two_classes_weigh(numbers, weights, "KernelSVM")
        values = gram.numpy().astype(np.float64, copy=False)
        most = float(self.C) * (np.ones(len(numbers)) if weights is None else weights.cpu().numpy())
        classes = len(self.classes_)
        below = _below_zero(values)
        scale = float(np.abs(np.diag(values)).mean()) or 1.0  # SVC's tolerances assume a diagonal of about 1
        unit = values if scale == 1.0 else values / scale
        machines = [_machine(unit, scale, numbers == c, most, self.tol, self.max_iter, below) for c in _asked(classes)]
        coef, intercept = np.stack([m.coef for m in machines]), np.array([m.intercept for m in machines])
        if classes == 2:
            coef, intercept = np.concatenate([-coef, coef]) / 2, np.concatenate([-intercept, intercept]) / 2
        self.coef_, self.intercept_ = coef, intercept
        self.n_iter_ = max([1, *(m.steps for m in machines)])
        self.support_ = np.flatnonzero((coef != 0).any(0))
        self.jitter_ = 0.0
        self.gap_ = max(m.gap for m in machines)
        self.converged_ = self.gap_ <= self.tol
        if not self.converged_:
            warnings.warn(
                f"KernelSVM stopped with an objective up to {self.gap_:.2g} above its minimum (relative, duality gap); tol"
                f" asked for {self.tol:.1g}: raise max_iter or tol, or lower C",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self


@dataclass(frozen=True)
class _Machine:
    coef: NDArray[np.float64]
    intercept: float
    steps: int
    gap: float
    """Relative: the objective is above its minimum by at most this share of it."""


def _asked(classes: int) -> range:
    """The classes that get a function of their own."""
    return range(1, 2) if classes == 2 else range(classes)


def _machine(
    unit: NDArray[np.float64],
    scale: float,
    positive: NDArray[np.bool_],
    most: NDArray[np.float64],
    tol: float,
    max_iter: int,
    below: float,
) -> _Machine:
    """One class against the others; SVC's own tolerance is lowered until the duality gap is within `tol`.

    `unit` is the kernel divided by `scale`, and the result is divided back. An eigenvalue of `-below` could lower the norm of
    the function by `below · ‖coef‖²`; that counts as gap.
    """
    signs = np.where(positive, 1.0, -1.0)
    bound = most * scale
    found, asked, steps = _Machine(np.zeros(len(signs)), 0.0, 0, np.inf), min(1e-3, max(tol, 1e-12)), 0
    limit = left = STEPS if max_iter < 0 else max_iter
    for _ in range(ATTEMPTS):
        machine = SVC(C=1.0, kernel="precomputed", tol=asked, max_iter=left)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the gap reports it
            machine.fit(unit, positive.astype(int), bound)
        coef = np.zeros(len(signs))
        coef[machine.support_] = machine.dual_coef_[0]
        coef = signs * np.clip(signs * coef, 0, bound)
        steps += int(np.max(machine.n_iter_))
        scores = unit @ coef
        intercept = _best_intercept(scores, signs, bound, float(machine.intercept_[0]))
        norm = float(coef @ scores)
        dual = float(np.abs(coef).sum()) - norm / 2 - abs(float(coef.sum())) * (1 + abs(intercept))
        margins = signs * (scores + intercept)
        least = float(margins[bound > 0].min())
        room = 1 + 1e-12  # separable points must not pay C for the rounding of their margin
        for stretch in (1.0, room / least) if least > 0 else (1.0,):
            primal = stretch**2 * norm / 2 + float((bound * np.maximum(0, 1 - stretch * margins)).sum())
            gap = (max(0.0, primal - dual) + below / scale * float(coef @ coef)) / primal if primal > 0 else 0.0
            if gap < found.gap:
                found = _Machine(stretch * coef / scale, stretch * intercept, steps, gap)
        left = limit - steps
        if found.gap <= tol or left <= 0:
            break
        asked = max(1e-14, asked * min(0.1, 0.3 * tol / found.gap))
    return replace(found, steps=steps)


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

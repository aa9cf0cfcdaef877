"""Logistic regression in the kernel's function space, by damped Newton steps with the closed-form Hessian."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ntkscope.core.checked import Count, Positive
from ntkscope.linalg.solvers.system import symmetric_part
from ntkscope.surrogates._base import Array, LinearClassifier, as_array, both_sides, keep
from ntkscope.surrogates._checks import (
    MultiClass,
    Strength,
    class_labels,
    sample_weights,
    training_kernel,
    two_classes_weigh,
)
from ntkscope.surrogates.registry import SURROGATES
from ntkscope.surrogates.solvers.laplace import Laplace
from ntkscope.surrogates.solvers.leading import Leading, exact_preconditioner
from ntkscope.surrogates.solvers.losses import Loss, logistic_loss
from ntkscope.surrogates.solvers.newton import Problem, newton

HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Descent:
    """Where Newton's method stopped."""

    c: Tensor
    b: Tensor
    value: float
    residual: float
    gap: float
    iterations: int
    converged: bool


@final
@SURROGATES.register("logistic")
class KernelLogistic(LinearClassifier):
    """`f_k = K c_k + b_k`, minimising the mean cross-entropy plus `α/2 Σ_k c_kᵀ K c_k`; the bias is free.

    The penalty is the squared RKHS norm of the function. Each Newton step is exact: one Cholesky factor per class, and one
    more for softmax; O(classes n³) per step, some ten steps, halved where a full one would overshoot. multi_class:
    "multinomial" or "ovr"; for two classes "ovr" is the usual binary logistic regression, logits (-f/2, f/2). Sample
    weights make the mean a weighted one. Rasmussen & Williams, Gaussian Processes for Machine Learning (2006),
    algorithms 3.1 and 3.3, where K/(α n) is the prior covariance.

    tol: how far above its minimum the objective may be, relative to it, by the duality gap, and the largest entry of the
    stationarity equations `αn c = y - p`.

    Fitted: `coef_` (classes, n), `intercept_`, `loss_`, `gap_` (`loss_` is above the minimum by at most this),
    `gradient_norm_` (of the stationarity equations), `converged_` (the gap is within `tol`; a ConvergenceWarning where not),
    `n_iter_`, `jitter_`: what was added to the diagonal of a kernel with negative eigenvalues, with a warning.

    Examples:
        >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> KernelLogistic(alpha=0.1).fit(K, [0, 0, 1]).predict(K).tolist()
        [0, 0, 1]
    """

    def __init__(
        self,
        alpha: Strength = 1e-3,
        *,
        multi_class: MultiClass = "multinomial",
        tol: Positive = 1e-8,
        max_iter: Count = 100,
        fit_intercept: bool = True,
    ) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> KernelLogistic:
        """Fit on the kernel (n, n), one label per row, and weights (n,)."""
        gram = training_kernel(self, K)
        self.alpha_ = float(self.alpha)
        self.classes_, numbers = class_labels(gram, y, "KernelLogistic")
        given = sample_weights(gram, sample_weight)
        two_classes_weigh(numbers, given, "KernelLogistic")
        ones = torch.ones(gram.shape[0], dtype=torch.float64, device=gram.device)
        weights = ones / len(ones) if given is None else given / given.sum()
        kernel = symmetric_part(gram, torch.float64)
        loss = logistic_loss(numbers, len(self.classes_), weights.to(kernel.device)[:, None], self.multi_class)
        model = Laplace(kernel, loss, self.alpha_, self.fit_intercept)
        found = self._descend(model, loss)
        if not found.converged and found.iterations < self.max_iter:
            found = self._in_features(model, loss, found)
        self.n_iter_ = max(1, found.iterations)
        self.jitter_, self.loss_, self.gap_ = model.jitter, found.value, found.gap
        self.gradient_norm_, self.converged_ = found.residual, found.converged
        self._keep(as_array(found.c), as_array(found.b))
        if not found.converged:
            warnings.warn(
                f"KernelLogistic stopped after {self.n_iter_} steps with an objective up to"
                f" {found.gap / found.value if found.value else 0:.2g} above its minimum (relative) and a stationarity"
                f" residual of {found.residual:.2g}; tol asked for {self.tol:.1g}: raise max_iter or alpha",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _descend(self, model: Laplace, loss: Loss) -> Descent:
        """Newton steps from zero until both the duality gap and the stationarity equations are within `tol`."""
        c, b = torch.zeros_like(loss.targets), torch.zeros_like(loss.targets[0])
        problem = Problem(lambda v: v, lambda r: r, loss, self.alpha_, self.fit_intercept)  # for the best bias alone

        def rebiased(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            theta, fitted = problem.rebiased(torch.cat([c, b[None]]), model.kernel @ c + b)
            return theta[-1], fitted

        b, fitted = rebiased(c, b)
        value, steps = model.value(c, fitted), 0
        while True:
            residual, gap = model.stationarity(c, fitted), model.gap(c, fitted)
            there = gap <= self.tol * value / (1 + self.tol)
            if (there and residual <= self.tol) or steps >= self.max_iter:
                break
            steps += 1
            c_new, b_new = model.step(c, fitted)
            length, moved = 1.0, False
            for _ in range(HALVINGS):
                trial_c, trial_b = c + length * (c_new - c), b + length * (b_new - b)
                trial_b, trial = rebiased(trial_c, trial_b)
                reached = model.value(trial_c, trial)
                if reached <= value + 1e-13 * abs(value):
                    moved = bool((trial != fitted).any())
                    break
                length /= 2
            if not moved:
                break
            c, b, fitted, value = trial_c, trial_b, trial, reached
        return Descent(c, b, value, residual, gap, steps, there)

    def _in_features(self, model: Laplace, loss: Loss, stalled: Descent) -> Descent:
        """Finish where rounding stopped the steps: in `Φ = U √λ`, `K = Φ Φᵀ`, which has half the digits of K.

        `c = U λ^-½ w` has no part in directions that rounding alone fills.
        """
        values, vectors = torch.linalg.eigh(model.kernel)
        kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
        leading = Leading(vectors[:, kept], values[kept].sqrt())
        features = leading.features
        problem = Problem(lambda v: features @ v, lambda r: features.T @ r, loss, self.alpha_, self.fit_intercept)
        start = torch.cat([features.T @ stalled.c, stalled.b[None]])
        if stalled.gap > stalled.value:  # lost: points on the wrong side have no curvature to recover by
            start = torch.zeros_like(start)
        precondition = partial(exact_preconditioner, leading, loss, self.alpha_, self.fit_intercept)
        found = newton(problem, start, precondition, math.inf, self.tol, self.max_iter - stalled.iterations)
        c, b = leading.vectors @ (found.theta[:-1] / leading.values[:, None]), found.theta[-1]
        slope = problem.gradient(found.theta, found.scores)[:-1] / leading.values[:, None]
        residual = len(c) * float((leading.vectors @ slope).abs().max()) if len(slope) else 0.0
        value = model.value(c, model.kernel @ c + b)  # for the coefficients as they will be used
        gap = found.gap + abs(value - found.value)
        there = gap <= self.tol * value / (1 + self.tol)
        return Descent(c, b, value, residual, gap, stalled.iterations + found.iterations, there)

    def _keep(self, c: Array, b: Array) -> None:
        coef = np.ascontiguousarray(c.T)
        self.coef_, self.intercept_ = both_sides(coef, b) if len(coef) < len(self.classes_) else (coef, b)

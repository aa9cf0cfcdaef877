"""Logistic regression in the kernel's function space, by damped Newton steps with the closed-form Hessian."""

from __future__ import annotations

import warnings
from typing import Any, final

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ntkscope.core import UsageError
from ntkscope.linalg.system import symmetric_part
from ntkscope.surrogates._base import Array, LinearClassifier, as_array, one_hot
from ntkscope.surrogates._checks import (
    choice,
    class_labels,
    sample_weights,
    strength,
    training_kernel,
    two_classes_weigh,
)
from ntkscope.surrogates._laplace import Laplace
from ntkscope.surrogates._losses import Loss, OneVsRest, Softmax
from ntkscope.surrogates.registry import SURROGATES

HALVINGS = 40


@final
@SURROGATES.register("logistic")
class KernelLogistic(LinearClassifier):
    """`f_k = K c_k + b_k`, minimising the mean cross-entropy plus `α/2 Σ_k c_kᵀ K c_k`; the bias is free.

    The penalty is the squared RKHS norm of the function. Each Newton step is exact: one Cholesky factor a class, and one
    more for softmax; O(classes n³) a step, some ten steps, halved where a full one would overshoot. multi_class:
    "multinomial" or "ovr"; for two classes "ovr" is the usual binary logistic regression, logits (-f/2, f/2). Sample
    weights make the mean a weighted one. Rasmussen & Williams, Gaussian Processes for Machine Learning (2006),
    algorithms 3.1 and 3.3, where K/(α n) is the prior covariance.

    Fitted: `coef_` (classes, n), `intercept_`, `loss_`, `gradient_norm_` (of the stationarity equations
    `αn c = y - p`, largest entry), `n_iter_`, `jitter_`: what was added to the diagonal of a kernel with negative
    eigenvalues, with a warning.

    >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> KernelLogistic(alpha=0.1).fit(K, [0, 0, 1]).predict(K).tolist()
    [0, 0, 1]
    """

    def __init__(
        self,
        alpha: Any = 1e-3,
        *,
        multi_class: Any = "multinomial",
        tol: Any = 1e-8,
        max_iter: Any = 100,
        fit_intercept: Any = True,
    ) -> None:
        self.alpha = alpha
        self.multi_class = multi_class
        self.tol = tol
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> KernelLogistic:
        """Fit on the kernel (n, n), a label a row, and weights (n,)."""
        choice("multi_class", self.multi_class, ("multinomial", "ovr"))
        self.alpha_ = strength(self.alpha, remedy=": without it, separable classes have no optimum")
        gram = training_kernel(self, K)
        self.classes_, self.numbers_ = class_labels(gram, y, "KernelLogistic")
        given = sample_weights(gram, sample_weight)
        two_classes_weigh(self.numbers_, given, "KernelLogistic")
        ones = torch.ones(gram.shape[0], dtype=torch.float64, device=gram.device)
        self._weights = ones / len(ones) if given is None else given / given.sum()
        kernel = symmetric_part(gram, torch.float64)
        loss = self._loss(kernel.device)
        model = Laplace(kernel, loss, self.alpha_, self.fit_intercept)
        c, b = torch.zeros_like(loss.targets), torch.zeros_like(loss.targets[0])
        fitted = model.kernel @ c + b
        value, self.n_iter_ = model.value(c, fitted), 0
        residual = model.stationarity(c, fitted)
        while residual > self.tol and self.n_iter_ < self.max_iter:
            self.n_iter_ += 1
            c_new, b_new = model.step(c, fitted)
            length = 1.0
            for _ in range(HALVINGS):
                trial_c, trial_b = c + length * (c_new - c), b + length * (b_new - b)
                trial = model.kernel @ trial_c + trial_b
                reached = model.value(trial_c, trial)
                if reached <= value + 1e-12 * abs(value):
                    break
                length /= 2
            moved = float((trial - fitted).abs().max())
            c, b, fitted, value = trial_c, trial_b, trial, reached
            residual = model.stationarity(c, fitted)
            if moved == 0.0:
                break
        self.n_iter_ = max(1, self.n_iter_)
        self.jitter_, self.loss_, self.gradient_norm_ = model.jitter, value, residual
        self._keep(as_array(c), as_array(b))
        if residual > max(self.tol, 1e-6):
            warnings.warn(
                f"KernelLogistic stopped after {self.n_iter_} steps with a stationarity residual of {residual:.2g}; tol asked"
                f" for {self.tol:.1g}: raise max_iter or alpha",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def leave_one_out(self, K: Any) -> Array:
        """Logits (n, classes) of each training point by one Newton step of the fit without it; approximate, O(classes² n³).

        The strength `α n` of the penalty is that of the whole fit.
        """
        check_is_fitted(self)
        gram = training_kernel(self, K)
        if gram.shape[0] != len(self.numbers_):
            raise UsageError(
                f"leave_one_out got a kernel of {gram.shape[0]} rows; expected the {len(self.numbers_)} training points"
            )
        kernel = symmetric_part(gram, torch.float64)
        coef, intercept = self.coef_, self.intercept_
        if self._binary:
            coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
        c, b = (torch.from_numpy(np.ascontiguousarray(v)).to(kernel.device) for v in (coef.T, intercept))
        loss = self._loss(kernel.device)
        out = Laplace(kernel, loss, self.alpha_, self.fit_intercept).leave_one_out(kernel @ c + b)
        return as_array(torch.cat([-out / 2, out / 2], dim=1) if self._binary else out)

    @property
    def _binary(self) -> bool:
        return self.multi_class == "ovr" and len(self.classes_) == 2

    def _loss(self, device: torch.device) -> Loss:
        targets = one_hot(self.numbers_, len(self.classes_), device)
        weights = self._weights.to(device)[:, None]
        if self.multi_class == "multinomial":
            return Softmax(targets, weights)
        return OneVsRest(targets[:, 1:] if self._binary else targets, weights)

    def _keep(self, c: Array, b: Array) -> None:
        if self._binary:
            c, b = np.concatenate([-c, c], axis=1) / 2, np.concatenate([-b, b]) / 2
        self.coef_, self.intercept_ = np.ascontiguousarray(c.T), b

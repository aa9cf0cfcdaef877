"""The kernel generalised linear model: softmax of a linear map of kernel rows, fitted to the optimum."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any, Literal, final

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, Positive
from ntkscope.core.random import derive_seed
from ntkscope.linalg import Gram
from ntkscope.surrogates._base import Array, LinearClassifier, as_array, both_sides, keep
from ntkscope.surrogates._checks import MultiClass, Strength, class_labels, fitted_kernel, training_kernel
from ntkscope.surrogates.registry import SURROGATES
from ntkscope.surrogates.solvers.glm_leave_one_out import glm_leave_one_out
from ntkscope.surrogates.solvers.leading import Leading, full_preconditioner, leading_pairs, reduced_preconditioner
from ntkscope.surrogates.solvers.losses import Loss, logistic_loss
from ntkscope.surrogates.solvers.newton import Optimum, Problem, newton

NEAR = 1.0  # how far above its optimum that problem may stop, relative to it
REDUCED = 1e-4  # how far the problem in the leading directions is solved before the whole one, relative to its start


@final
@SURROGATES.register("glm")
class KernelGLM(LinearClassifier):
    """`logits(x) = W κ(x, X) + b`, W and b minimising the mean cross-entropy plus `α/2 ‖W‖²`; the bias is free.

    The kernel's columns are features, and the penalty is on W itself, as in SGDClassifier on those columns and as in
    the kGLM of the surrogate paper, eq. 1 (not the RKHS norm: that is `KernelLogistic`). The objective is convex;
    "newton-cg" reaches its optimum with nothing but products `K @ V`, so K may be dense, factored, an operator
    or tiles on disk, in single precision, on any device; sums are in float64. It first solves the problem in the `rank`
    leading eigen-directions of K, which also precondition the rest: 3 products with `rank` columns, then some
    tens with one column per class. "sgd" is scikit-learn's SGDClassifier(loss="log_loss"), one-vs-rest, as in the
    paper; it does not reach the optimum, and `gap_` and a warning say by how much.

    multi_class: "multinomial" (softmax) or "ovr" (an independent logistic loss per class; for two classes one loss of the
    difference of the logits). tol: how far above its minimum the objective may be, relative to it, by the duality gap, which
    is a bound at every scale of the kernel; and the norm of the gradient relative to that at zero. In every case
    `predict_proba` is the softmax of the logits, as in the paper.

    Fitted: `coef_` (classes, n), `intercept_` (classes,), `alpha_`, `loss_` (the objective), `gap_` (`loss_` is above the
    minimum by at most this), `gradient_norm_` (relative), `n_iter_`, `n_products_` (of the last optimisation, with one column
    per class), `n_passes_` (all products with K: how often a kernel on disk is read), `converged_` (both within `tol`; a
    ConvergenceWarning where not). No jitter is ever needed: `jitter_` is 0.

    Examples:
        >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> glm = KernelGLM(alpha=1e-3).fit(K, ["a", "a", "b"])
        >>> glm.predict(K).tolist(), glm.logits(K).shape
        (['a', 'a', 'b'], (3, 2))
    """

    def __init__(
        self,
        alpha: Strength = 1e-4,
        *,
        solver: Literal["newton-cg", "sgd"] = "newton-cg",
        multi_class: MultiClass = "multinomial",
        tol: Positive = 1e-6,
        max_iter: Count = 200,
        fit_intercept: bool = True,
        rank: Count = 128,
        seed: int = 0,
    ) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any) -> KernelGLM:
        """Fit on the kernel of the training inputs with themselves, (n, n), and one label per row."""
        gram = training_kernel(self, K)
        self.n_passes_ = int(isinstance(K, Gram))  # the check for NaN
        self.classes_, numbers = class_labels(gram, y, "KernelGLM")
        self.numbers_ = numbers
        self.alpha_, self.jitter_ = float(self.alpha), 0.0
        if self.solver == "sgd":
            return self._fit_sgd(gram, numbers)
        self._keep(*self._optimise(gram, numbers))
        return self

    def leave_one_out(self, K: Any) -> Array:
        """Logits (n, classes) of each training point as if its label and its column had been absent; approximate.

        One Newton step from the optimum, exact in the `rank` leading directions of K; elsewhere the curvature of the
        loss is neglected beside the ridge. O(n rank² classes²) after O((rank classes)³).
        """
        check_is_fitted(self)
        if self.solver == "sgd":
            raise UsageError(
                "leave_one_out got a KernelGLM fitted by solver='sgd'; expected one at its optimum: use solver='newton-cg'"
            )
        gram, numbers = fitted_kernel(self, K), self.numbers_
        return glm_leave_one_out(
            gram,
            leading_pairs(gram, self.rank, self.seed),
            self._loss(gram, numbers, self.multi_class),
            self.alpha_,
            self._theta(gram, self.multi_class),
            self.fit_intercept,
        )

    # -- the optimum ------------------------------------------------------------------------------------------------

    def _loss(self, gram: Gram, numbers: Array, multi_class: str) -> Loss:
        n = gram.shape[0]
        weights = torch.full((n, 1), 1 / n, dtype=torch.float64, device=gram.device)
        return logistic_loss(numbers, len(self.classes_), weights, multi_class)

    def _optimise(self, gram: Gram, numbers: Array) -> tuple[Optimum, float]:
        """The optimum, and the norm of the gradient at zero."""
        loss, alpha = self._loss(gram, numbers, self.multi_class), self.alpha_
        bias = self.fit_intercept
        quick = None  # directions need no more digits than the kernel has, and products in its own dtype are faster
        if gram.dtype == torch.float32:
            quick = lambda v: (gram @ v.to(torch.float32)).to(torch.float64)  # noqa: E731
        whole = Problem(lambda v: gram @ v, lambda r: gram @ r, loss, alpha, bias, quick)
        zero = torch.zeros(gram.shape[0] + 1, loss.targets.shape[1], dtype=torch.float64, device=gram.device)
        at_zero = float(whole.gradient(zero, torch.zeros_like(loss.targets)).norm())
        self.n_passes_ += 1
        leading = leading_pairs(gram, self.rank, self.seed)
        self.n_passes_ += leading.passes
        start = self._reduced_start(whole, leading)
        if self.multi_class == "multinomial":  # a shift shared by all classes is penalised and has no effect
            start = start - start.mean(1, keepdim=True)
        precondition = partial(full_preconditioner, leading, loss, alpha, bias)
        goal = self.tol * at_zero
        first = self.max_iter if quick is None else max(1, self.max_iter // 4)
        found = newton(whole, start, precondition, goal, self.tol, first)
        if (
            quick is not None and not found.converged and found.iterations < self.max_iter
        ):  # large values: directions need every digit
            exact, left = replace(whole, quick=None), self.max_iter - found.iterations
            more = newton(exact, found.theta, precondition, goal, self.tol, left)
            iterations, products = found.iterations + more.iterations, found.products + more.products
            found = replace(more, iterations=iterations, products=products)
        self.n_passes_ += found.products
        return found, at_zero

    def _reduced_start(self, whole: Problem, leading: Leading) -> Tensor:
        """The optimum in the leading directions alone, as parameters of the whole problem."""
        features = leading.features
        reduced = Problem(lambda v: features @ v, lambda r: features.T @ r, whole.loss, whole.alpha, whole.bias)
        zero = features.new_zeros(features.shape[1] + 1, whole.loss.targets.shape[1])
        size = float(reduced.gradient(zero, torch.zeros_like(whole.loss.targets)).norm())
        precondition = partial(reduced_preconditioner, leading, whole.loss, whole.alpha, whole.bias)
        found = newton(reduced, zero, precondition, max(REDUCED, self.tol) * size, NEAR, self.max_iter)
        return torch.cat([leading.vectors @ found.theta[:-1], found.theta[-1:]])

    def _keep(self, optimum: Optimum, at_zero: float) -> None:
        theta = as_array(optimum.theta)
        shared = theta[-1].mean() if self.multi_class == "multinomial" else 0.0
        self._set(np.ascontiguousarray(theta[:-1].T), theta[-1] - shared)
        self.loss_, self.gap_ = optimum.value, optimum.gap
        self.gradient_norm_ = optimum.gradient_norm / at_zero if at_zero else 0.0
        self.n_iter_ = max(1, optimum.iterations)
        self.n_products_ = optimum.products
        self.converged_ = optimum.converged
        if not optimum.converged:
            warnings.warn(
                f"KernelGLM stopped after {optimum.iterations} iterations with an objective up to"
                f" {optimum.gap / optimum.value if optimum.value else 0:.2g} above its minimum (relative) and a relative"
                f" gradient norm of {self.gradient_norm_:.2g}; tol asked for {self.tol:.1g}: raise max_iter, alpha or tol",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _set(self, coef: Array, intercept: Array) -> None:
        """Keep the functions: one for each class, or one alone where one-vs-rest has two classes."""
        one = len(coef) < len(self.classes_)
        self.coef_, self.intercept_ = both_sides(coef, intercept) if one else (coef, intercept)

    def _theta(self, gram: Gram, multi_class: str) -> Tensor:
        coef, intercept = self.coef_, self.intercept_
        if multi_class == "ovr" and len(self.classes_) == 2:
            coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
        return torch.from_numpy(np.concatenate([coef.T, intercept[None]])).to(gram.device)

    # -- stochastic steps -------------------------------------------------------------------------------------------

    def _fit_sgd(self, gram: Gram, numbers: Array) -> KernelGLM:
        sgd = SGDClassifier(
            loss="log_loss",
            alpha=self.alpha_,
            fit_intercept=self.fit_intercept,
            max_iter=max(1000, self.max_iter),
            random_state=derive_seed(self.seed, "kernel-glm-sgd") % 2**32,
        ).fit(gram.numpy(), numbers)
        self._set(np.asarray(sgd.coef_, np.float64), np.asarray(sgd.intercept_, np.float64))
        self.n_iter_ = int(sgd.n_iter_)
        self._measure_sgd(gram, numbers)
        return self

    def _measure_sgd(self, gram: Gram, numbers: Array) -> None:
        """How far above its minimum the one-vs-rest objective stopped, by the duality gap of the best bias; two products."""
        loss = self._loss(gram, numbers, "ovr")
        problem = Problem(lambda v: gram @ v, lambda r: gram @ r, loss, self.alpha_, self.fit_intercept)
        theta = self._theta(gram, "ovr")
        scores = problem.scores(theta)
        self.loss_ = problem.value(theta, scores)
        biased, best = problem.rebiased(theta, scores)
        gap = problem.gap(problem.gradient(biased, best), best)
        self.gap_ = gap + self.loss_ - problem.value(biased, best)
        self.n_passes_ += 2
        self.converged_ = self.gap_ <= self.tol * self.loss_ / (1 + self.tol)
        if not self.converged_:
            warnings.warn(
                f"KernelGLM(solver='sgd') stopped with an objective up to {self.gap_ / self.loss_:.2g} above its minimum"
                f" (relative); tol asked for {self.tol:.1g}, which stochastic steps do not reach: use solver='newton-cg'",
                ConvergenceWarning,
                stacklevel=4,
            )

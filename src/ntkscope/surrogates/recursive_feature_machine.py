"""Recursive feature machines: kernel ridge regression whose metric is the average gradient outer product of its own fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, final

import numpy as np
import torch
from jaxtyping import Float64
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import from_numpy, one_hot, tensor_of
from ntkscope.core.checked import SQUARES, CountOrZero, NonNegative, Positive, Several, check_options, ranged, renamed
from ntkscope.core.sizes import parse_bytes
from ntkscope.surrogates._base import Array, ScoreClassifier, ScoreRegressor, as_array, keep
from ntkscope.surrogates._checks import class_labels, float_targets, value_errors
from ntkscope.surrogates.metrics.radial import KINDS, gradients
from ntkscope.surrogates.metrics.recursion import Learned, RecursiveStep, Settings, learn, predict
from ntkscope.surrogates.registry import INPUT_SURROGATES


class _RecursiveFeatures(BaseEstimator):
    """What regression and classification share; abstract."""

    coef_: Array
    intercept_: Array
    metric_: Array
    bandwidth_: float
    alpha_: float
    iterations_: int
    path_: tuple[RecursiveStep, ...]

    @renamed(ridge="alpha")
    def __init__(
        self,
        kernel: Annotated[str, KINDS] = "laplace",
        bandwidth: Positive | None = None,
        alpha: NonNegative | None = None,
        iterations: CountOrZero | None = None,
        diagonal: bool = False,
        *,
        fit_intercept: bool = True,
        rows: Several = 4000,
        memory: str | int | float = "2GiB",
        seed: int = 0,
    ) -> None:
        keep(locals())

    def _learn(self, inputs: Float64[Tensor, "n d"], targets: Float64[Tensor, "n k"]) -> None:
        settings = Settings(
            kind=self.kernel,
            bandwidth=self.bandwidth,
            ridge=self.alpha,
            iterations=self.iterations,
            diagonal=self.diagonal,
            intercept=self.fit_intercept,
            rows=int(self.rows),
            memory=parse_bytes(self.memory),
            seed=self.seed,
        )
        ranged(targets, "y", SQUARES)
        if len(inputs) < 2:
            raise UsageError(
                f"got n_samples = {len(inputs)}; expected at least 2 training points: leave-one-out needs one to fit and one"
                " to predict"
            )
        self._centre = inputs.mean(0)  # smaller norms leave more digits to the distances
        learned = learn(inputs - self._centre, targets, settings)
        self._learned = learned = replace(learned, problem=replace(learned.problem, squares=None))
        found = learned.regression
        self.coef_, self.intercept_ = np.ascontiguousarray(as_array(found.coef).T), as_array(found.intercept)
        self.metric_ = as_array(learned.problem.metric.matrix)
        self.bandwidth_, self.alpha_, self.iterations_ = found.kernel.bandwidth, found.ridge, learned.iteration
        self.path_ = learned.steps

    def _points(self, X: Any) -> tuple[Learned, Float64[Tensor, "m r"]]:
        """The fit, and inputs in the coordinates of its metric."""
        check_is_fitted(self)
        learned: Learned = self._learned
        inputs = as_inputs(self, X, reset=False).to(learned.problem.points.device)
        return learned, learned.problem.metric.mapped(inputs - self._centre)

    @property
    def ridge_(self) -> float:
        """`alpha_` by its old name."""
        return self.alpha_

    def logits(self, X: Any) -> Array:
        """The outputs as a matrix (n_test, outputs); by tiles, O(n_test n_train (d + outputs))."""
        learned, points = self._points(X)
        return as_array(predict(learned.problem, learned.regression, points))

    def gradients(self, X: Any) -> Float64[np.ndarray, "n k d"]:
        """The gradient of every output at every input, in closed form, without training points that coincide with it.

        The Laplace kernel has no gradient where its points coincide.
        """
        learned, points = self._points(X)
        problem, fit = learned.problem, learned.regression
        tiles = [gradients(fit.kernel, tile, problem.points, fit.coef) for tile in points.split(problem.tile)]
        return as_array(problem.metric.pulled(torch.cat(tiles, 1)).movedim(0, 1))


@final
@INPUT_SURROGATES.register("rfm")
class RecursiveFeatureMachine(_RecursiveFeatures, ScoreRegressor):
    """Kernel ridge regression on inputs whose metric is learned: `f(x) = b + Σ_i c_i κ(‖x - x_i‖_M / L)`, `M ← AGOP of f`.

    `kernel` is "laplace", `exp(-‖x - z‖_M / L)`, or "gaussian", `exp(-‖x - z‖²_M / 2L²)`, `‖v‖²_M = vᵀ M v`. From M = I on, the
    regression `Σ (y_i - f(x_i))² + λ cᵀKc` (λ is `alpha`, b free unless `fit_intercept=False`) and the average gradient outer
    product `M = 1/n Σ_i Σ_l ∇f_l(x_i) ∇f_l(x_i)ᵀ`, divided by its largest entry, follow each other `iterations` times, then one
    last regression. `diagonal=True` learns one weight per feature. Pairs of points that coincide in the metric are left out of
    gradients of the Laplace kernel, which has none there. Inputs should be of one scale (`StandardScaler`).

    What is None is chosen. Bandwidth and alpha have the least mean squared leave-one-out error, in closed form, anew in every
    metric, by descent on a grid from the last ones. Metrics follow until two in a row have not lowered that error, at most 10
    times. It is exact in its metric, but the metric has seen the point that is left out (on targets that are noise it falls
    all the same), so `iterations` is the number with the least error on points that the whole recursion has not seen, over
    five folds at the settings found. More than `rows` points choose on a random sample of so many. O(n³ + n² d outputs) per
    regression, some eight times that where something is chosen; two (n, n) matrices must fit into `memory`, and tiles keep the
    rest within it. In float64, on the device of the inputs.

    Fitted: `metric_` (d, d), or (d,) if diagonal, `coef_` (outputs, n), `intercept_`, `bandwidth_`, `alpha_`, `iterations_`,
    and `path_`, every regression with its settings and errors. Radhakrishnan, Beaglehole, Pandit & Belkin, Science 383 (2024).

    Examples:
        >>> random = np.random.default_rng(0)
        >>> X = random.normal(size=(200, 6))
        >>> machine = RecursiveFeatureMachine().fit(X, X[:, 0] * X[:, 1])
        >>> np.diag(machine.metric_).round(1).tolist()[:4], machine.iterations_ > 0
        ([1.0, 1.0, 0.0, 0.0], True)
    """

    def fit(self, X: Any, y: Any) -> RecursiveFeatureMachine:
        """Fit on inputs (n, d) and targets (n,) or (n, outputs)."""
        inputs = as_inputs(self, X, reset=True)
        targets = float_targets(inputs, y, "RecursiveFeatureMachine", "RecursiveFeatureClassifier")
        self._learn(inputs, self._as_columns(targets))
        return self


@final
@INPUT_SURROGATES.register("rfm-classifier")
class RecursiveFeatureClassifier(_RecursiveFeatures, ScoreClassifier):
    """`RecursiveFeatureMachine` on one-hot targets; the class of the largest output wins, and `logits` are the outputs.

    `predict_proba`, the softmax of the outputs, orders classes but is not calibrated.

    Examples:
        >>> X = np.random.default_rng(0).normal(size=(100, 4))
        >>> RecursiveFeatureClassifier().fit(X[:80], X[:80, 0] > 0).score(X[80:], X[80:, 0] > 0)
        1.0
    """

    def fit(self, X: Any, y: Any) -> RecursiveFeatureClassifier:
        """Fit on inputs (n, d) and one label per row."""
        inputs = as_inputs(self, X, reset=True)
        self.classes_, numbers = class_labels(inputs, y, "RecursiveFeatureClassifier")
        self._learn(inputs, one_hot(numbers, len(self.classes_), inputs.device))
        return self


def as_inputs(estimator: BaseEstimator, X: Any, *, reset: bool) -> Float64[Tensor, "n d"]:
    """Finite inputs (n, d) in float64 on their device, checked as scikit-learn does."""
    if reset:
        check_options(estimator)
    if not isinstance(X, Tensor):
        return ranged(from_numpy(validate_data(estimator, X, reset=reset, dtype=np.float64)), "X")
    with value_errors():
        inputs = tensor_of(X, "inputs", 2, empty=True, hint=": flatten(1) makes rows of images")
    if reset:
        estimator.n_features_in_ = X.shape[1]
    elif X.shape[1] != estimator.n_features_in_:
        raise UsageError(
            f"got inputs with {X.shape[1]} features; {type(estimator).__name__} is expecting {estimator.n_features_in_}, as"
            " many as it was fitted on"
        )
    return ranged(inputs, "X")

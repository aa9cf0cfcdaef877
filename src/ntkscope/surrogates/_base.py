"""What the surrogates share: the scikit-learn interface of a map from kernel rows to one score per class."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ntkscope.core.arguments import one_hot
from ntkscope.linalg import Gram
from ntkscope.surrogates._checks import class_labels, float_targets, query_kernel, sample_weights, training_kernel

Array = NDArray[Any]


class PairwiseEstimator(BaseEstimator):
    """An estimator whose inputs are kernel matrices: `fit` on (n, n), everything else on (n_test, n)."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        return tags


class LinearInKernel(PairwiseEstimator):
    """Scores linear in the kernel row, with `coef_` (outputs, n_train) and `intercept_` (outputs,) in float64."""

    coef_: Array
    intercept_: Array

    def logits(self, K: Any) -> Array:
        """`K coef_ᵀ + intercept_`, (n_test, outputs), in float64, whatever the shape of y was; O(n_test n_train outputs)."""
        check_is_fitted(self)
        return affine(query_kernel(self, K), self.coef_, self.intercept_)


class ScoreClassifier(ClassifierMixin, BaseEstimator):
    """A classifier with one score per class, `logits(K)`; the rest of its interface follows from them."""

    classes_: Array

    @abstractmethod
    def logits(self, K: Any) -> Array:
        """One score per class, (n_test, classes), in float64."""

    def decision_function(self, K: Any) -> Array:
        """`logits(K)`; for two classes their difference (n_test,), positive for `classes_[1]`, as in scikit-learn."""
        scores = self.logits(K)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, K: Any) -> Array:
        """The class with the largest score; ties go to the first."""
        winners = self.logits(K).argmax(1)
        return self.classes_[winners]

    def predict_proba(self, K: Any) -> Array:
        """`softmax(logits(K))`, (n_test, classes)."""
        return softmax(self.logits(K), axis=1)


class ScoreRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """A regressor with one score per output, `logits(K)`."""

    _flat: bool

    @abstractmethod
    def logits(self, K: Any) -> Array:
        """The outputs as a matrix (n_test, outputs), whatever the shape of y was."""

    def _as_columns(self, targets: Tensor) -> Tensor:
        """Targets (n, outputs); `predict` answers in the shape that they had."""
        self._flat = targets.ndim == 1
        return targets.reshape(len(targets), -1)

    def predict(self, K: Any) -> Array:
        """(n_test,), or (n_test, outputs) when y had two axes."""
        scores = self.logits(K)
        return scores[:, 0] if self._flat else scores


class KernelClassifier(ScoreClassifier, PairwiseEstimator):
    """A `ScoreClassifier` on kernel rows."""


class LinearClassifier(LinearInKernel, KernelClassifier):
    """A classifier whose logits are linear in the kernel row."""


class LinearRegressor(LinearInKernel, ScoreRegressor):
    """A regressor whose outputs are linear in the kernel row."""


class LeastSquares(LinearInKernel):
    """Weighted least squares on a kernel, as a regressor or, on one-hot targets, a classifier."""

    @abstractmethod
    def _solve(self, gram: Gram, columns: Tensor, weights: Tensor | None) -> None:
        """Set `coef_`, `intercept_` and what else the fit says, for targets (n, outputs)."""


class LeastSquaresRegressor(LeastSquares, LinearRegressor):
    """`LeastSquares` of real targets."""

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit on the kernel (n, n), targets (n,) or (n, outputs), and weights (n,)."""
        gram = training_kernel(self, K)
        columns = self._as_columns(float_targets(gram, y, type(self).__name__))
        self._solve(gram, columns, sample_weights(gram, sample_weight))
        return self


class LeastSquaresClassifier(LeastSquares, LinearClassifier):
    """`LeastSquares` of one-hot targets."""

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit on the kernel (n, n), one label per row, and weights (n,)."""
        gram = training_kernel(self, K)
        self.classes_, numbers = class_labels(gram, y, type(self).__name__)
        self._solve(gram, one_hot(numbers, len(self.classes_), gram.device), sample_weights(gram, sample_weight))
        return self


def keep(options: dict[str, Any]) -> None:
    """Store the arguments of an estimator's `__init__`, its `locals()`, as they are; scikit-learn has `fit` check them."""
    vars(options.pop("self")).update(options)


def both_sides(coef: Array, intercept: Array) -> tuple[Array, Array]:
    """Logits (-f/2, f/2) of two classes, from one function f with coefficients (1, n) and intercept (1,)."""
    return np.concatenate([-coef, coef]) / 2, np.concatenate([-intercept, intercept]) / 2


def affine(gram: Gram, coef: Array, intercept: Array) -> Array:
    """`K coefᵀ + intercept` in float64 on the kernel's device, returned as a NumPy array."""
    weights = torch.from_numpy(np.ascontiguousarray(coef.T)).to(gram.device)
    return as_array(gram @ weights) + intercept


def as_array(values: Tensor) -> Array:
    return values.detach().to("cpu", torch.float64).numpy()

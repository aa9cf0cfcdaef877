"""What the surrogates share: the scikit-learn interface of a map from kernel rows to one score per class."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ntkscope.linalg import Gram
from ntkscope.surrogates._checks import query_kernel

Array = NDArray[Any]


class PairwiseEstimator(BaseEstimator):
    """An estimator whose inputs are kernel matrices: `fit` on (n, n), everything else on (n_test, n)."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        return tags


class LinearInKernel(PairwiseEstimator):
    """Scores `K coef_ᵀ + intercept_`, with `coef_` (outputs, n_train) and `intercept_` (outputs,) in float64."""

    coef_: Array
    intercept_: Array

    def _scores(self, K: Any) -> Array:
        """(n_test, outputs), computed on the kernel's device, in blocks if it is in single precision."""
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


class KernelClassifier(ScoreClassifier, PairwiseEstimator):
    """A `ScoreClassifier` on kernel rows."""


class LinearClassifier(LinearInKernel, KernelClassifier):
    """A classifier whose logits are linear in the kernel row."""

    def logits(self, K: Any) -> Array:
        """`K coef_ᵀ + intercept_`, (n_test, classes), in float64; O(n_test n_train classes)."""
        return self._scores(K)


def affine(gram: Gram, coef: Array, intercept: Array) -> Array:
    """`K coefᵀ + intercept` in float64 on the kernel's device, returned as a NumPy array."""
    weights = torch.from_numpy(np.ascontiguousarray(coef.T)).to(gram.device)
    return as_array(gram @ weights) + intercept


def as_array(values: Tensor) -> Array:
    return values.detach().to("cpu", torch.float64).numpy()

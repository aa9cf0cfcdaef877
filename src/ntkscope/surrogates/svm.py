"""Support vector machine on a precomputed kernel, its dual coefficients laid out as one row a class."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from sklearn.svm import SVC

from ntkscope.core import UsageError
from ntkscope.surrogates._base import LinearClassifier
from ntkscope.surrogates._checks import class_labels, sample_weights, training_kernel, two_classes_weigh
from ntkscope.surrogates.registry import SURROGATES


@final
@SURROGATES.register("svm")
class KernelSVM(LinearClassifier):
    """scikit-learn's SVC(kernel="precomputed"), one-vs-rest: class c against all others, `½‖f_c‖² + C Σ_i hinge`.

    One-vs-rest rather than SVC's own one-vs-one, so that every class has one function linear in the kernel: `coef_`
    (classes, n), zero outside the support vectors, and `intercept_` (classes,). With two classes there is one function f
    and the logits are (-f/2, f/2). O(n²) to O(n³) a class; the kernel is formed as a NumPy array. `predict_proba` is the
    softmax of the scores: it orders classes and is not calibrated.

    >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> KernelSVM().fit(K, [0, 0, 1]).predict(K).tolist()
    [0, 0, 1]
    """

    def __init__(self, C: Any = 1.0, *, tol: Any = 1e-3, max_iter: Any = -1) -> None:
        self.C = C
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> KernelSVM:
        """Fit on the kernel (n, n), a label a row, and weights (n,) that multiply C."""
        if not (isinstance(self.C, int | float | np.number) and self.C > 0):
            raise UsageError(f"C={self.C!r} came; expected a number > 0")
        gram = training_kernel(self, K)
        self.classes_, numbers = class_labels(gram, y, "KernelSVM")
        weights = sample_weights(gram, sample_weight)
        two_classes_weigh(numbers, weights, "KernelSVM")
        values = gram.numpy().astype(np.float64, copy=False)
        classes = len(self.classes_)
        coef, intercept, steps = np.zeros((classes, len(numbers))), np.zeros(classes), []
        for c in range(1, 2) if classes == 2 else range(classes):
            machine = SVC(C=self.C, kernel="precomputed", tol=self.tol, max_iter=self.max_iter)
            machine.fit(values, (numbers == c).astype(int), None if weights is None else weights.cpu().numpy())
            coef[c, machine.support_] = machine.dual_coef_[0]
            intercept[c] = machine.intercept_[0]
            steps.append(int(np.max(machine.n_iter_)))
        if classes == 2:
            coef, intercept = np.stack([-coef[1], coef[1]]) / 2, np.array([-intercept[1], intercept[1]]) / 2
        self.coef_, self.intercept_ = coef, intercept
        self.n_iter_ = max([1, *steps])
        self.support_ = np.flatnonzero((coef != 0).any(0))
        self.jitter_ = 0.0
        return self

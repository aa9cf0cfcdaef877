"""The nearest class centre under a kernel: `argmin_c ‖φ(x) - μ_c‖`, with μ_c the mean of the features of class c."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ntkscope.core.arguments import one_hot
from ntkscope.core.checked import Positive
from ntkscope.surrogates._base import Array, LinearClassifier, as_array, keep
from ntkscope.surrogates._checks import class_labels, fitted_kernel, training_kernel
from ntkscope.surrogates.registry import SURROGATES


@final
@SURROGATES.register("nearest-class-centre")
class NearestClassCentre(LinearClassifier):
    """Logits `(φ(x)·μ_c - ‖μ_c‖² / 2) / variance`; O(n² classes).

    Up to a term that all classes share these are `-‖φ(x) - μ_c‖² / (2 variance)`, the log-densities of classes that scatter
    around their centres with that variance in every direction. They are affine in the kernel row, so the rule is a linear
    classifier; `variance` changes probabilities and no prediction. It is the rule that a collapsed network's own decisions
    agree with (Papyan, Han & Donoho 2020, NC4).

    >>> x = np.array([[0.0], [2.0], [10.0]])
    >>> NearestClassCentre().fit(x @ x.T, [0, 0, 1]).predict(np.array([[5.0], [6.0]]) @ x.T).tolist()
    [0, 1]
    """

    def __init__(self, variance: Positive = 1.0) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any) -> NearestClassCentre:
        """Fit on the kernel (n, n) and one label per row."""
        gram = training_kernel(self, K)
        self.classes_, self.numbers_ = class_labels(gram, y, "NearestClassCentre")
        variance = float(self.variance)
        members = one_hot(self.numbers_, len(self.classes_), gram.device)  # (n, classes)
        shares = members / members.sum(0)
        squares = (shares * (gram @ shares)).sum(0)  # (classes,): ‖μ_c‖²
        self.variance_ = variance
        self.coef_ = as_array(shares.T) / variance
        self.intercept_ = as_array(squares) / (-2 * variance)
        return self

    def leave_one_out(self, K: Any) -> Array:
        """(n, classes): each training point's logits by the centres of the others; exact, O(n² classes).

        A class whose only member is left out has no centre, and the logit -inf.
        """
        gram = fitted_kernel(self, K)
        logits = self.logits(gram)
        rows, own = np.arange(len(self.numbers_)), self.numbers_
        count = np.bincount(own)[own].astype(np.float64)
        square = -2 * self.variance_ * self.intercept_[own]  # ‖μ‖² of its class
        along = self.variance_ * (logits[rows, own] - self.intercept_[own])  # φ(x_i)·μ
        itself = as_array(gram.diagonal())
        with np.errstate(divide="ignore", invalid="ignore"):
            near = (count * along - itself) / (count - 1)
            length = (count**2 * square - 2 * count * along + itself) / (count - 1) ** 2
            logits[rows, own] = np.where(count > 1, (near - length / 2) / self.variance_, -np.inf)
        return logits

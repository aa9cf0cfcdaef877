"""The nearest class centre under a kernel: `argmin_c ‖φ(x) - μ_c‖`, with μ_c the mean of the features of class c."""

from __future__ import annotations

from typing import Any, final

from ntkscope.core.arguments import one_hot
from ntkscope.core.checked import Positive
from ntkscope.surrogates._base import LinearClassifier, as_array, keep
from ntkscope.surrogates._checks import class_labels, training_kernel
from ntkscope.surrogates.registry import SURROGATES


@final
@SURROGATES.register("nearest-class-centre")
class NearestClassCentre(LinearClassifier):
    """Logits `(φ(x)·μ_c - ‖μ_c‖² / 2) / variance`; O(n² classes).

    Up to a term that all classes share these are `-‖φ(x) - μ_c‖² / (2 variance)`, the log-densities of classes that scatter
    around their centres with that variance in every direction. They are affine in the kernel row, so the rule is a linear
    classifier; `variance` changes probabilities and no prediction. It is the rule that a collapsed network's own decisions
    agree with (Papyan, Han & Donoho 2020, NC4).

    Examples:
        >>> import numpy as np
        >>> x = np.array([[0.0], [2.0], [10.0]])
        >>> NearestClassCentre().fit(x @ x.T, [0, 0, 1]).predict(np.array([[5.0], [6.0]]) @ x.T).tolist()
        [0, 1]
    """

    def __init__(self, variance: Positive = 1.0) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any) -> NearestClassCentre:
        """Fit on the kernel (n, n) and one label per row."""
        gram = training_kernel(self, K)
        self.classes_, numbers = class_labels(gram, y, "NearestClassCentre")
        variance = float(self.variance)
        members = one_hot(numbers, len(self.classes_), gram.device)  # (n, classes)
        shares = members / members.sum(0)
        squares = (shares * (gram @ shares)).sum(0)  # (classes,): ‖μ_c‖²
        self.coef_ = as_array(shares.T) / variance
        self.intercept_ = as_array(squares) / (-2 * variance)
        return self

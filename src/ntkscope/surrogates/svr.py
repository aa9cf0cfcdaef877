"""Support vector regression on a precomputed kernel."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from ntkscope.core import UsageError
from ntkscope.surrogates._base import Array
from ntkscope.surrogates._checks import float_targets, sample_weights, training_kernel
from ntkscope.surrogates._margins import tube
from ntkscope.surrogates._smo import tube_machine
from ntkscope.surrogates._support import SupportVectors
from ntkscope.surrogates.registry import SURROGATES


@final
@SURROGATES.register("svr")
class KernelSVR(MultiOutputMixin, RegressorMixin, SupportVectors):
    """`½‖f‖² + C Σ_i max(0, |y_i - f(x_i)| - ε)`, or with the square of that loss; y may have several outputs.

    intercept, solver, tol and max_iter: as for `KernelSVM`. The ε-insensitive loss with a free intercept is scikit-learn's SVR
    (solver "smo"); with a penalised one, squared or not, its LinearSVR. Fitted: `coef_` (outputs, n), `intercept_` (outputs,),
    `support_`, `n_iter_`, `solver_`, `objective_`, `gap_`, `converged_`, `jitter_`.

    >>> K = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> KernelSVR(100.0, epsilon=0.1).fit(K, [1.0, 3.0]).predict(K).round(6).tolist()
    [1.1, 2.9]
    """

    _margin = "epsilon_insensitive"
    _squared = "squared_epsilon_insensitive"

    def __init__(
        self,
        C: Any = 1.0,
        *,
        epsilon: Any = 0.1,
        loss: Any = "epsilon_insensitive",
        intercept: Any = "free",
        solver: Any = "auto",
        tol: Any = 1e-6,
        max_iter: Any = -1,
    ) -> None:
        self.C = C
        self.epsilon = epsilon
        self.loss = loss
        self.intercept = intercept
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> KernelSVR:
        """Fit on the kernel (n, n), targets (n,) or (n, outputs), and weights (n,) that multiply C."""
        self._checked()
        number = isinstance(self.epsilon, int | float | np.integer | np.floating) and not isinstance(self.epsilon, bool)
        if not (number and math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise UsageError(f"got epsilon={self.epsilon!r}; expected a finite number ≥ 0")
        gram = training_kernel(self, K)
        targets = float_targets(gram, y, "KernelSVR", "KernelSVM")
        self._flat = targets.ndim == 1
        self.solver_ = self._road(gram)
        inner, most, kept = self._weighed(gram, sample_weights(gram, sample_weight))
        columns = targets.reshape(len(targets), -1)
        columns = columns if kept is None else columns[kept]
        squared, bias = self.loss == self._squared, self.intercept == "free"
        problems = [tube(y, most, float(self.epsilon), squared=squared, bias=bias) for y in columns.T.contiguous()]
        machines = self._solved(inner, problems, tube_machine)
        self.coef_, self.intercept_ = self._keep(machines, kept, len(targets))
        return self

    def logits(self, K: Any) -> Array:
        """The outputs as a matrix (n_test, outputs), whatever the shape of y was."""
        return self._scores(K)

    def predict(self, K: Any) -> Array:
        """(n_test,), or (n_test, outputs) when y had two axes."""
        scores = self._scores(K)
        return scores[:, 0] if self._flat else scores

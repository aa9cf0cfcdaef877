"""Support vector regression on a precomputed kernel."""

from __future__ import annotations

from typing import Annotated, Any, final

from ntkscope.core.checked import NonNegative, Positive
from ntkscope.surrogates._base import LinearRegressor, keep
from ntkscope.surrogates._checks import float_targets, sample_weights, training_kernel
from ntkscope.surrogates._support import Intercept, Solver, Steps, SupportVectors
from ntkscope.surrogates.registry import SURROGATES
from ntkscope.surrogates.solvers.margins import tube
from ntkscope.surrogates.solvers.smo import tube_machine


@final
@SURROGATES.register("svr")
class KernelSVR(SupportVectors, LinearRegressor):
    """`½‖f‖² + C Σ_i max(0, |y_i - f(x_i)| - ε)`, or with the square of that loss; y may have several outputs.

    intercept, solver, tol and max_iter: as for `KernelSVM`. The ε-insensitive loss with a free intercept is scikit-learn's SVR
    (solver "smo"); with a penalised one, squared or not, its LinearSVR. Fitted: `coef_` (outputs, n), `intercept_` (outputs,),
    `support_`, `n_iter_`, `solver_`, `objective_`, `gap_`, `converged_`, `jitter_`.

    >>> K = [[2.0, 1.0], [1.0, 2.0]]
    >>> KernelSVR(100.0, epsilon=0.1).fit(K, [1.0, 3.0]).predict(K).round(6).tolist()
    [1.1, 2.9]
    """

    _margin = "epsilon_insensitive"
    _squared = "squared_epsilon_insensitive"

    def __init__(
        self,
        C: Positive = 1.0,
        *,
        epsilon: NonNegative = 0.1,
        loss: Annotated[str, ("epsilon_insensitive", "squared_epsilon_insensitive")] = "epsilon_insensitive",
        intercept: Intercept = "free",
        solver: Solver = "auto",
        tol: Positive = 1e-6,
        max_iter: Steps = -1,
    ) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> KernelSVR:
        """Fit on the kernel (n, n), targets (n,) or (n, outputs), and weights (n,) that multiply C."""
        gram = training_kernel(self, K)
        columns = self._as_columns(float_targets(gram, y, "KernelSVR", "KernelSVM"))
        self.solver_ = self._road(gram)
        inner, most, kept = self._weighed(gram, sample_weights(gram, sample_weight))
        columns = columns if kept is None else columns[kept]
        squared, bias = self.loss == self._squared, self.intercept == "free"
        problems = [tube(y, most, float(self.epsilon), squared=squared, bias=bias) for y in columns.T.contiguous()]
        machines = self._solved(inner, problems, tube_machine)
        self.coef_, self.intercept_ = self._keep(machines, kept, gram.shape[0])
        return self

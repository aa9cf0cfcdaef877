"""Support vector machines on a precomputed kernel, for classes (one-vs-rest) and for targets."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeAlias, final

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.checked import NonNegative, Positive, within
from ntkscope.linalg import Gram, NumericalWarning
from ntkscope.surrogates._base import (
    Array,
    LinearClassifier,
    LinearInKernel,
    LinearRegressor,
    as_array,
    both_sides,
    keep,
)
from ntkscope.surrogates._checks import class_labels, float_targets, sample_weights, training_kernel, two_classes_weigh
from ntkscope.surrogates.registry import SURROGATES
from ntkscope.surrogates.solvers.interior import fit_interior
from ntkscope.surrogates.solvers.margin_newton import STEPS, Kernel, Machine, fit_squared, unit_kernel
from ntkscope.surrogates.solvers.margins import Margins, classes_apart, tube
from ntkscope.surrogates.solvers.smo import UnitKernel, class_machine, tube_machine

ByLibsvm: TypeAlias = Callable[[UnitKernel, Margins, float, int], Machine]
Intercept: TypeAlias = Annotated[str, ("free", "penalised")]
Solver: TypeAlias = Annotated[str, ("auto", "smo", "newton")]
Steps: TypeAlias = Annotated[int, within(low=-1, expected="a number of steps, or -1")]
SMO_UP_TO = 10_000
HUGE = 1e30
ACTIVE_SETS = 20  # that are tried before the interior-point method


def fit_margins(margins: Margins, kernel: Kernel, tol: float, max_iter: int = -1) -> Machine:
    """Minimise until the duality gap is within `tol` of the objective; `max_iter` Newton steps, -1 for 300."""
    limit, inner = STEPS if max_iter < 0 else max_iter, margins.in_units(kernel.scale)
    if not margins.squared:
        found = fit_interior(inner, kernel, tol, limit)
    else:
        found = fit_squared(inner, kernel, tol, min(limit, ACTIVE_SETS))
        if found.gap > tol and limit > found.steps:
            other = fit_interior(inner, kernel, tol, limit - found.steps)
            found = replace(min(found, other, key=lambda one: one.gap), steps=found.steps + other.steps)
    if not math.isfinite(found.gap):
        raise NumericalError(
            f"no function on this kernel of {len(found.coef)} rows, mean diagonal {kernel.scale:.3g}, had a finite objective"
            " above 0; expected a positive semi-definite kernel whose products with C stay in range: check how it was computed"
        )
    return replace(found, coef=found.coef / kernel.scale, value=found.value / kernel.scale)


Pose: TypeAlias = Callable[[Tensor | None, Tensor, bool, bool], list[Margins]]
"""Of the rows that are kept, their C, whether the loss is squared and the intercept free: one problem per function."""


class SupportVectors(LinearInKernel):
    """Abstract: `_margin` and `_squared` name the two losses."""

    solver_: str
    _margin: str
    _squared: str

    def _road(self, gram: Gram) -> str:
        """SMO or Newton: what was asked for, or SMO for small kernels on a CPU where it has the loss and the intercept."""
        possible = self.loss == self._margin and self.intercept == "free"
        if self.solver == "smo" and not possible:
            raise UsageError(
                f"got solver='smo' with loss={self.loss!r}, intercept={self.intercept!r}; expected loss={self._margin!r} and"
                " intercept='free', all that libsvm has: use solver='newton'"
            )
        if self.solver != "auto":
            return str(self.solver)
        small = gram.shape[0] <= SMO_UP_TO and gram.device.type == "cpu" and not gram.out_of_core
        return "smo" if possible and small else "newton"

    def _weighed(self, gram: Gram, weights: Tensor | None) -> tuple[Gram, Tensor, Tensor | None]:
        """The kernel of the points of positive weight, C times their weights, and which they are (None: all)."""
        kept = None if weights is None or bool((weights > 0).all()) else (weights > 0).nonzero()[:, 0]
        most = torch.full((gram.shape[0],), float(self.C), dtype=torch.float64, device=gram.device)
        most = most if weights is None else most * weights
        most = most if kept is None else most[kept]
        inner = gram if kept is None else gram[kept, kept]
        scale = float(inner.diagonal().to(torch.float64).abs().mean()) + (self.intercept == "penalised") or 1.0
        low, high = (scale * float(edge) for edge in torch.aminmax(most))
        if not 1 / HUGE <= low <= high <= HUGE:
            raise UsageError(
                f"got C times sample_weight times the kernel's mean diagonal from {low:.3g} to {high:.3g}; expected numbers"
                f" from {1 / HUGE:g} to {HUGE:g}, or weights of 0: scale the kernel or C"
            )
        return inner, most, kept

    def _solved(self, gram: Gram, problems: list[Margins], smo: ByLibsvm) -> list[Machine]:
        """One machine after another on one kernel."""
        self.jitter_ = 0.0
        if self.solver_ == "newton":
            return self._newton(gram, problems)
        unit = UnitKernel.of(as_array(gram.dense()))
        found = [smo(unit, problem.cpu(), self.tol, self.max_iter) for problem in problems]
        missed = [k for k, one in enumerate(found) if one.gap > self.tol]
        if missed and self.solver == "auto" and self.max_iter < 0 and not unit.below:
            with contextlib.suppress(NumericalError):  # what libsvm found stays
                for k, other in zip(missed, self._newton(gram, [problems[k] for k in missed])):
                    if other.gap < found[k].gap:
                        found[k], self.solver_ = other, "newton"
        return found

    def _newton(self, gram: Gram, problems: list[Margins]) -> list[Machine]:
        penalised = self.intercept == "penalised"
        kernel = unit_kernel(gram, constant=penalised)
        self.jitter_ = kernel.jitter
        if self.jitter_:
            warnings.warn(
                f"{gram!r} has negative eigenvalues beyond rounding: {self.jitter_:.3g} was added to its diagonal (mean"
                f" {kernel.scale:.3g}) for {type(self).__name__}",
                NumericalWarning,
                stacklevel=5,
            )
        found = []
        for problem in problems:
            machine = fit_margins(problem, kernel, self.tol, self.max_iter)
            found.append(replace(machine, intercept=float(machine.coef.sum())) if penalised else machine)
        return found

    def _fit(self, gram: Gram, weights: Tensor | None, pose: Pose, smo: ByLibsvm) -> tuple[Array, Array]:
        """Fit one machine for each problem posed: coefficients (machines, n) and intercepts; sets how good they are."""
        self.solver_ = self._road(gram)
        inner, most, kept = self._weighed(gram, weights)
        problems = pose(kept, most, self.loss == self._squared, self.intercept == "free")
        machines = self._solved(inner, problems, smo)
        coef, intercept = np.stack([as_array(m.coef) for m in machines]), np.array([m.intercept for m in machines])
        if kept is not None:
            everywhere = np.zeros((len(coef), gram.shape[0]))
            everywhere[:, kept.cpu().numpy()] = coef
            coef = everywhere
        self.n_iter_ = max([1, *(m.steps for m in machines)])
        self.support_ = np.flatnonzero((coef != 0).any(0))
        self.objective_ = np.array([m.value for m in machines])
        self.gap_ = max(m.gap for m in machines)
        self.converged_ = self.gap_ <= self.tol
        if not self.converged_:
            warnings.warn(
                f"{type(self).__name__} stopped with an objective up to {self.gap_:.2g} above its minimum (relative, duality"
                f" gap); tol asked for {self.tol:.1g}: raise max_iter or tol, or lower C",
                ConvergenceWarning,
                stacklevel=3,
            )
        return coef, intercept


@final
@SURROGATES.register("svm")
class KernelSVM(SupportVectors, LinearClassifier):
    """One-vs-rest: class c against all others, `½‖f_c‖² + C Σ_i hinge`, or the squared hinge `max(0, 1 - y f)²`.

    One-vs-rest rather than SVC's own one-vs-one, so that every class has one function linear in the kernel: `coef_`
    (classes, n), zero outside the support vectors, and `intercept_` (classes,). With two classes there is one function f
    and the logits are (-f/2, f/2). `predict_proba` is the softmax of the scores: it ranks classes but is not calibrated.

    intercept: "free", or "penalised", when a constant is one more feature, of the kernel `K + 1`: hinge with a free one is
    scikit-learn's SVC, squared hinge with a penalised one its LinearSVC.

    solver: "smo" is SVC, which has the hinge and a free intercept alone; O(n²) to O(n³) per class, the kernel as a NumPy array.
    "newton" is in float64 on the kernel's device: squared losses in the primal on the active rows, the others by an
    interior-point method; each step factorises, O(n³) at most, where the kernel fits into memory, else it uses conjugate
    gradients on `K @ v`. "auto" is "smo" where it applies, up to 10,000 rows on a CPU, then "newton" where libsvm's gap stays
    above `tol` (large C).

    tol: how far above its minimum the objective of each class may be, relative to it, by the duality gap. max_iter: steps
    of the solver per class; -1 means a million of SVC's, 300 of Newton's. Fitted: `coef_`, `intercept_`, `support_`, `n_iter_`,
    `solver_`, `objective_` (of each function), `gap_` (the largest, relative), `converged_` (within `tol`; a ConvergenceWarning
    where not), `jitter_` (what Newton's method added to the diagonal of a kernel with negative eigenvalues, with a warning; the
    objective is that of `K + jitter_ I`).

    Examples:
        >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> KernelSVM().fit(K, [0, 0, 1]).predict(K).tolist()
        [0, 0, 1]
        >>> svm = KernelSVM(loss="squared_hinge", intercept="penalised").fit(K, [0, 0, 1])
        >>> svm.solver_, svm.decision_function(K).round(3).tolist()
        ('newton', [-0.781, -0.781, 0.625])
    """

    _margin = "hinge"
    _squared = "squared_hinge"

    def __init__(
        self,
        C: Positive = 1.0,
        *,
        loss: Annotated[str, ("hinge", "squared_hinge")] = "hinge",
        intercept: Intercept = "free",
        solver: Solver = "auto",
        tol: Positive = 1e-6,
        max_iter: Steps = -1,
    ) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> KernelSVM:
        """Fit on the kernel (n, n), one label per row, and weights (n,) that multiply C."""
        gram = training_kernel(self, K)
        self.classes_, numbers = class_labels(gram, y, "KernelSVM")
        weights = sample_weights(gram, sample_weight)
        two_classes_weigh(numbers, weights, "KernelSVM")
        classes = len(self.classes_)
        asked = range(1, 2) if classes == 2 else range(classes)  # those that get a function of their own
        places = torch.from_numpy(numbers).to(gram.device)

        def pose(kept: Tensor | None, most: Tensor, squared: bool, bias: bool) -> list[Margins]:
            rows = places if kept is None else places[kept]
            return [classes_apart(rows == c, most, squared=squared, bias=bias) for c in asked]

        coef, intercept = self._fit(gram, weights, pose, class_machine)
        if classes == 2:
            coef, intercept = both_sides(coef, intercept)
        self.coef_, self.intercept_ = coef, intercept
        return self


@final
@SURROGATES.register("svr")
class KernelSVR(SupportVectors, LinearRegressor):
    """`½‖f‖² + C Σ_i max(0, |y_i - f(x_i)| - ε)`, or with the square of that loss; y may have several outputs.

    intercept, solver, tol and max_iter: as for `KernelSVM`. The ε-insensitive loss with a free intercept is scikit-learn's SVR
    (solver "smo"); with a penalised one, squared or not, its LinearSVR. Fitted: `coef_` (outputs, n), `intercept_` (outputs,),
    `support_`, `n_iter_`, `solver_`, `objective_`, `gap_`, `converged_`, `jitter_`.

    Examples:
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

        def pose(kept: Tensor | None, most: Tensor, squared: bool, bias: bool) -> list[Margins]:
            rows = columns if kept is None else columns[kept]
            return [tube(y, most, float(self.epsilon), squared=squared, bias=bias) for y in rows.T.contiguous()]

        weights = sample_weights(gram, sample_weight)
        self.coef_, self.intercept_ = self._fit(gram, weights, pose, tube_machine)
        return self

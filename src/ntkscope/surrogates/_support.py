"""What support vector classification and regression share: their options, the choice of the solver, what is kept."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, TypeAlias

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.checked import within
from ntkscope.linalg import Gram, NumericalWarning
from ntkscope.surrogates._base import Array, LinearInKernel, as_array
from ntkscope.surrogates.solvers.interior import fit_interior
from ntkscope.surrogates.solvers.margin_newton import STEPS, Kernel, Machine, fit_squared, unit_kernel
from ntkscope.surrogates.solvers.margins import Margins
from ntkscope.surrogates.solvers.smo import Solved, UnitKernel

ByLibsvm: TypeAlias = Callable[[UnitKernel, Margins, float, int], Solved]
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

    def _solved(self, gram: Gram, problems: list[Margins], smo: ByLibsvm) -> list[Solved]:
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

    def _newton(self, gram: Gram, problems: list[Margins]) -> list[Solved]:
        penalised = self.intercept == "penalised"
        kernel = unit_kernel(gram, constant=penalised)
        self.jitter_ = kernel.jitter
        if self.jitter_:
            warnings.warn(
                f"{gram!r} has negative eigenvalues beyond rounding: {self.jitter_:.3g} was added to its diagonal (mean"
                f" {kernel.scale:.3g}) for {type(self).__name__}",
                NumericalWarning,
                stacklevel=4,
            )
        found = []
        for problem in problems:
            machine = fit_margins(problem, kernel, self.tol, self.max_iter)
            intercept = float(machine.coef.sum()) if penalised else machine.intercept
            found.append(Solved(as_array(machine.coef), intercept, machine.value, machine.gap, machine.steps))
        return found

    def _keep(self, machines: list[Solved], kept: Tensor | None, n: int) -> tuple[Array, Array]:
        """What the machines found, as coefficients (machines, n) and intercepts, and how good it is."""
        coef, intercept = np.stack([m.coef for m in machines]), np.array([m.intercept for m in machines])
        if kept is not None:
            everywhere = np.zeros((len(coef), n))
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

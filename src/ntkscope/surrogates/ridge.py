"""Kernel ridge regression with its exact leave-one-out, and the classifier on one-hot targets."""

from __future__ import annotations

import warnings
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.checked import Count, NonNegative, Positive, renamed
from ntkscope.linalg import (
    Gram,
    NumericalWarning,
    OperatorGram,
    block_jacobi,
    cholesky_solve,
    conjugate_gradient,
    minimum_norm_solve,
    nystrom,
)
from ntkscope.linalg.solvers.preconditioner import Preconditioner
from ntkscope.linalg.solvers.system import column_units, symmetric_part
from ntkscope.linalg.spectra.band import lapack_is_safe
from ntkscope.surrogates._base import Array, LeastSquares, LeastSquaresClassifier, LeastSquaresRegressor, as_array, keep
from ntkscope.surrogates._checks import fitted_kernel
from ntkscope.surrogates.registry import SURROGATES

DENSE_UP_TO = 10_000
OBJECTIVE = 1e-6  # how far above its minimum the objective may be, relative to it, without a warning


class _Ridge(LeastSquares):
    """What regression and classification share; abstract."""

    @renamed(rtol="tol")
    def __init__(
        self,
        alpha: NonNegative = 1.0,
        *,
        solver: Literal["auto", "cholesky", "cg"] = "auto",
        tol: Positive = 1e-8,
        max_iter: Count = 1000,
        preconditioner: Literal["nystrom", "block-jacobi", "none"] = "nystrom",
        rank: Count = 256,
    ) -> None:
        keep(locals())

    def _solve(self, gram: Gram, columns: Tensor, weights: Tensor | None) -> None:
        """`(S K S + α I) c̃ = S Y`, `c = S c̃`, with S² the weights: a point of weight 0 has coefficient 0."""
        alpha, solver = float(self.alpha), self.solver
        scale = torch.ones_like(columns[:, :1]) if weights is None else weights.sqrt()[:, None]
        system = gram if weights is None else _scaled(gram, scale)
        formed = gram.shape[0] <= DENSE_UP_TO and (alpha == 0 or not gram.out_of_core)
        self.jitter_, self.n_iter_, self.n_passes_, self.converged_ = 0.0, 1, 0, True
        if solver == "cholesky" or (solver == "auto" and formed):
            solution = self._direct(system, scale * columns, alpha)
        else:
            if alpha == 0:
                raise UsageError("got alpha=0 with solver='cg'; expected alpha > 0, or solver='cholesky'")
            helper = self._helper(system, alpha)
            iterated = conjugate_gradient(system, scale * columns, alpha, helper, self.tol, self.max_iter)
            solution, self.n_iter_, self.converged_ = iterated.solution, max(1, iterated.iterations), iterated.converged
            self.n_passes_ = iterated.passes + (self.preconditioner == "nystrom") + 1  # one pass checks for NaN
        self._check(system, scale * columns, alpha, solution)
        self.alpha_, self._weights, self._targets = alpha, weights, columns
        self.coef_ = np.ascontiguousarray(as_array(scale * solution).T)
        self.intercept_ = np.zeros(columns.shape[1])

    def _check(self, system: Gram, targets: Tensor, alpha: float, solution: Tensor) -> None:
        """How far above its minimum the objective is: by `rᵀ K (K + α)⁻¹ r ≤ min(‖r‖², rᵀKr/α)`, the minimum `α yᵀc`."""
        unit = column_units(targets)
        targets, solution = targets / unit, solution / unit
        image = system @ solution
        self.n_passes_ += self.n_passes_ > 0
        r = targets - image - alpha * solution
        if alpha == 0:  # the minimum is 0 where the kernel can fit the targets at all
            self.gap_ = float((r.square().sum(0) / targets.square().sum(0)).nan_to_num(0.0).amax())
            return
        above = r.square().sum(0)
        if float((above / (alpha * (targets * solution).sum(0))).nan_to_num(0.0).abs().amax()) > OBJECTIVE:
            above = torch.minimum(above, (r * (system @ r)).sum(0).abs() / alpha)
            self.n_passes_ += self.n_passes_ > 0
        reached = (targets - image).square().sum(0) + alpha * (solution * image).sum(0)
        relative = torch.where(above == 0, above, above / (reached - above).clamp_min(0))
        self.gap_ = float(relative.amax())
        self.converged_ = self.converged_ and self.gap_ <= OBJECTIVE
        if not self.gap_ <= OBJECTIVE:
            warnings.warn(
                f"{type(self).__name__}(alpha={alpha:.3g}) left its objective up to {self.gap_:.2g} above its minimum"
                f" (relative): the kernel is too large or too ill-conditioned for this ridge in double precision; raise"
                " alpha, lower tol (solver='cg'), or use MinimumNorm",
                NumericalWarning,
                stacklevel=4,
            )

    def _helper(self, system: Gram, alpha: float) -> Preconditioner | None:
        if self.preconditioner == "nystrom":
            return nystrom(system, alpha, rank=min(int(self.rank), system.shape[0]))
        return block_jacobi(system, alpha, size=self.rank) if self.preconditioner == "block-jacobi" else None

    def _direct(self, system: Gram, targets: Tensor, alpha: float) -> Tensor:
        """By Cholesky; by the pseudo-inverse, with a warning, if no jitter makes the matrix positive definite."""
        try:
            found = cholesky_solve(system, targets, alpha)
        except NumericalError as error:
            warnings.warn(f"{error} (answered by the pseudo-inverse of K + alpha I)", NumericalWarning, stacklevel=4)
            matrix = symmetric_part(system, torch.float64)
            matrix.diagonal().add_(alpha)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumericalWarning)  # the same warning again
                return minimum_norm_solve(matrix, targets).solution
        self.jitter_ = found.jitter
        return found.solution

    def leave_one_out(self, K: Any) -> Array:
        """(n, outputs): each training point's scores by the fit without it; exact: `y_i - c_i / (K + αV⁻¹)⁻¹_ii`."""
        gram = fitted_kernel(self, K)
        if not lapack_is_safe(gram.shape[0], gram.device):
            raise UsageError(
                f"leave_one_out of ridge regression got {gram!r}; it forms and inverts K, which is too large for that:"
                " KernelGLM.leave_one_out needs products only"
            )
        dtype = torch.float64
        weights, targets = (None if v is None else v.to(gram.device) for v in (self._weights, self._targets))
        assert targets is not None
        coef = torch.from_numpy(np.ascontiguousarray(self.coef_.T)).to(gram.device)
        scale = torch.ones(gram.shape[0], dtype=dtype, device=gram.device) if weights is None else weights.sqrt()
        matrix = symmetric_part(gram, dtype) * scale[:, None] * scale
        matrix.diagonal().add_(self.alpha_ + self.jitter_)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        inverse = torch.linalg.inv(matrix) if int(failed) else torch.cholesky_inverse(factor)
        precision = inverse.diagonal() * scale.square()
        fitted = gram @ coef
        left_out = targets - coef / precision[:, None]
        return as_array(torch.where(precision[:, None] != 0, left_out, fitted))


@final
@SURROGATES.register("ridge")
class KernelRidge(_Ridge, LeastSquaresRegressor):
    """`f(x) = κ(x, X) c`, c minimising `Σ_i v_i (y_i - f(x_i))² + α cᵀKc`: `(K + α V⁻¹) c = y`; O(n³).

    v are the sample weights (1). y may have several outputs. Up to 10,000 rows by Cholesky (float64 below 5,000);
    beyond, for a kernel on disk, or with solver="cg", by conjugate gradients on `K @ v`, one product for all outputs,
    preconditioned by "nystrom" (`rank` columns, one product), "block-jacobi" (blocks of `rank` rows; for rows ordered
    by similarity) or "none". A singular kernel with alpha=0 gets the jitter it needs: a warning says so, and `jitter_`
    holds the amount.

    Fitted: `coef_` (outputs, n), `intercept_` (zeros), `jitter_`, `n_iter_`, `gap_` (how far above its minimum the objective
    of an output may be, relative to it; with alpha=0 the share of the targets that is not fitted), `converged_` (`gap_` is
    within 1e-6, and conjugate gradients reached `tol`; a warning where not), `n_passes_` (products with K; 0 where it was
    formed).

    Examples:
        >>> ridge = KernelRidge(alpha=1.0).fit(3 * np.eye(2), [4.0, 8.0])
        >>> ridge.predict(3 * np.eye(2)).tolist(), ridge.leave_one_out(3 * np.eye(2)).tolist()
        ([3.0, 6.0], [[0.0], [0.0]])
    """


@final
@SURROGATES.register("ridge-classifier")
class KernelRidgeClassifier(_Ridge, LeastSquaresClassifier):
    """`KernelRidge` on one-hot targets; the class of the largest output wins, and `logits` are the outputs.

    `predict_proba`, the softmax of the outputs, orders classes but is not calibrated.

    Examples:
        >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> KernelRidgeClassifier(alpha=0.1).fit(K, [0, 0, 1]).predict(K).tolist()
        [0, 0, 1]
    """


def _scaled(gram: Gram, scale: Tensor) -> Gram:
    """`S K S` as products only; formed when a factorisation needs it. For a kernel on disk, a view that keeps its blocks."""
    if gram.out_of_core:
        return gram.to(torch.float64).scaled(scale[:, 0])
    return OperatorGram(
        gram.shape,
        lambda v: scale * (gram @ (scale * v)),
        dtype=torch.float64,
        device=gram.device,
        symmetric=True,
        diagonal=gram.diagonal().to(torch.float64) * scale[:, 0].square(),
    )

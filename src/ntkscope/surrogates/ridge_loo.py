"""Kernel ridge regression whose strength is chosen by its exact leave-one-out error."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.checked import SQUARES, Positive, Several, ranged
from ntkscope.data.subsets import stratified
from ntkscope.linalg import Gram, NumericalWarning
from ntkscope.linalg.spectra.band import lapack_is_safe
from ntkscope.surrogates._base import LinearRegressor, as_array, keep
from ntkscope.surrogates._checks import fitted_kernel, float_targets, training_kernel
from ntkscope.surrogates.registry import SURROGATES
from ntkscope.surrogates.ridge import DENSE_UP_TO, KernelRidge
from ntkscope.surrogates.solvers.ridge_path import RidgePath, ridge_path

ALPHAS = tuple(10.0 ** (-8 + 10 * k / 24) for k in range(25))


@final
@SURROGATES.register("ridge-loo")
class KernelRidgeLOO(LinearRegressor):
    """`f(x) = b + κ(x, X) c` minimising `Σ (y_i - f(x_i))² + α cᵀKc`, b free; α has the least leave-one-out error.

    `alphas` are multiples of the mean diagonal of the centred kernel, so that neither the kernel's scale nor a constant
    added to it matters. The error is that of n real refits, for every α from one decomposition in float64; all outputs
    share one α. A kernel of more than `rows` rows chooses α on a stratified sample of so many (by the largest output, if there
    are several), and all rows are fitted at that α: by Cholesky up to 10,000 rows in memory, else by conjugate gradients.
    O(rows³).

    Fitted: `coef_` (outputs, n), whose rows add up to 0, `intercept_`, `alpha_`, `edge_` ("smallest" or "largest" if α is an
    end of the grid: the best α may lie beyond it), `loo_errors_` (mean squared error by α, infinite where rounding left
    the kernel indefinite at that α), `loo_r2_` (1 minus the smallest error over the variance of the targets; 1 for constant
    ones), `rows_` (how many rows chose α), and `converged_`, `n_iter_` of the fit.

    Examples:
        >>> x = np.linspace(0, 1, 9)
        >>> ridge = KernelRidgeLOO().fit(np.outer(x, x), 2 * x + 1)
        >>> ridge.predict(np.outer([0.5], x)).round(4).tolist(), ridge.edge_
        ([2.0], 'smallest')
    """

    def __init__(self, alphas: Sequence[Positive] = ALPHAS, *, rows: Several = DENSE_UP_TO, seed: int = 0) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any) -> KernelRidgeLOO:
        """Fit on the kernel (n, n) and targets (n,) or (n, outputs)."""
        gram = training_kernel(self, K)
        columns = ranged(self._as_columns(float_targets(gram, y, "KernelRidge")), "y", SQUARES)
        path, chosen = self._path(gram, columns, _centred_diagonal(gram))
        self.alpha_, self.edge_, self.rows_ = float(path.alphas[path.best]), path.edge, len(path.targets)
        self.loo_errors_ = dict(zip(path.alphas.tolist(), path.errors.tolist()))
        spread = float(path.targets.var(0, correction=0).mean())
        self.loo_r2_ = 1 - float(path.errors.min()) / spread if spread > 0 else 1.0
        self._targets = columns
        if chosen is None:
            solution = path.solution(path.best)
            self.n_iter_, self.converged_ = 1, True
        else:
            del path
            solution = self._fit_all(gram, columns)
        self.coef_ = np.ascontiguousarray(as_array(solution).T)
        self.intercept_ = as_array((columns - gram @ solution).mean(0))
        return self

    def _path(self, gram: Gram, columns: Tensor, scale: float) -> tuple[RidgePath, Int64[np.ndarray, " k"] | None]:
        """The path over the grid, and the rows it was computed on; None for all of them."""
        grid = sorted({float(alpha) for alpha in self.alphas})
        if not grid:
            raise UsageError(f"got alphas={self.alphas!r}; expected at least one strength")
        alphas = scale * torch.tensor(grid, dtype=torch.float64, device=gram.device)
        n = gram.shape[0]
        limit = int(self.rows)
        while not lapack_is_safe(min(n, limit), gram.device) and limit > 2:
            limit //= 2
        if n <= limit:
            return ridge_path(gram, columns, alphas), None
        largest = as_array(columns).argmax(1)
        if len(np.unique(largest)) > limit:  # fewer rows than kinds of them
            largest = np.zeros_like(largest)
        chosen = stratified(largest, limit, self.seed, "ridge-loo")
        return ridge_path(gram[chosen, chosen], columns[torch.from_numpy(chosen).to(gram.device)], alphas), chosen

    def _fit_all(self, gram: Gram, columns: Tensor) -> Tensor:
        """`c = G y - b G 1` with `G = (K + α I)⁻¹` and b such that Σ c = 0: the system with a free intercept."""
        held = gram.shape[0] <= DENSE_UP_TO and not gram.out_of_core
        mean = columns.mean(0)
        both = torch.cat([columns - mean, torch.ones_like(columns[:, :1])], dim=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # `converged_` says it
            ridge = KernelRidge(self.alpha_).fit(gram.to(torch.float64) if held else gram, both)
        self.n_iter_, self.converged_ = ridge.n_iter_, ridge.converged_
        found = torch.from_numpy(ridge.coef_.T).to(gram.device)
        of_targets, of_ones = found[:, :-1], found[:, -1:]
        return of_targets - of_ones * (of_targets.sum(0) / of_ones.sum())

    def leave_one_out(self, K: Any) -> Float64[np.ndarray, "n k"]:
        """Each training point's prediction by the fit without it, at the α of the whole fit; exact, O(n³)."""
        gram = fitted_kernel(self, K)
        if not lapack_is_safe(gram.shape[0], gram.device):
            raise UsageError(f"leave_one_out got {gram!r}; expected one small enough to be decomposed")
        targets = self._targets.to(gram.device)
        alpha = torch.tensor([self.alpha_], dtype=torch.float64, device=gram.device)
        return as_array(targets - ridge_path(gram, targets, alpha).residuals(0))


def _centred_diagonal(gram: Gram) -> float:
    """The mean diagonal of H K H, H subtracting the mean; of K where nothing but rounding is left, 1 for a kernel of zeros."""
    ones = torch.ones(gram.shape[0], 1, dtype=torch.float64, device=gram.device)
    whole = float(gram.diagonal().double().mean())
    centred = whole - float((gram @ ones).mean()) / gram.shape[0]
    if centred > 1e-6 * whole > 0:
        return centred
    return whole if whole > 0 else 1.0

"""Minimum-norm interpolation: kernel ridge regression in the limit of no ridge."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.checked import Fraction, renamed
from ntkscope.linalg import Gram, minimum_norm_solve
from ntkscope.linalg.solvers.minimum_norm import default_cutoff
from ntkscope.surrogates._base import LeastSquares, LeastSquaresClassifier, LeastSquaresRegressor, as_array, keep
from ntkscope.surrogates.registry import SURROGATES


class _MinimumNorm(LeastSquares):
    """What regression and classification share; abstract."""

    @renamed(rtol="tol")
    def __init__(self, tol: Fraction | None = None) -> None:
        keep(locals())

    def _solve(self, gram: Gram, columns: Tensor, weights: Tensor | None) -> None:
        """`c = S (S K S)⁺ S Y`, S² the weights: a point of weight 0 has coefficient 0."""
        cutoff = default_cutoff(gram) if self.tol is None else self.tol
        if weights is None:
            found = minimum_norm_solve(gram, columns, cutoff)
            solution = found.solution
        else:
            roots = weights.sqrt()
            found = minimum_norm_solve(gram.to(torch.float64).scaled(roots), roots[:, None] * columns, cutoff)
            solution = roots[:, None] * found.solution
        self.coef_ = np.ascontiguousarray(as_array(solution).T)
        self.intercept_ = np.zeros(columns.shape[1])
        self.rank_, self.cutoff_, self.residual_ = found.rank, found.cutoff, found.residual
        self.jitter_ = 0.0


@final
@SURROGATES.register("minimum-norm")
class MinimumNorm(_MinimumNorm, LeastSquaresRegressor):
    """`f(x) = κ(x, X) K⁺ y`: of the functions that fit y best, the one of smallest norm; O(n³).

    Eigenvalues below `tol` times the largest count as zero (n rounding units of the kernel's dtype when None); a singular
    kernel therefore needs no jitter, and `rank_`, `cutoff_` and `residual_` say what was left out. With sample weights v
    the fit is best in `Σ_i v_i (y_i - f(x_i))²`: `c = S (S K S)⁺ S y`, S² = diag(v), and cut-off, rank and residual are
    those of `S K S`: Qadeer et al., in the PNNL report (2023), equations 13 and 14.

    Examples:
        >>> fitted = MinimumNorm().fit(np.ones((2, 2)), [1.0, 1.0])
        >>> fitted.coef_.round(12).tolist(), fitted.rank_
        ([[0.5, 0.5]], 1)
    """


@final
@SURROGATES.register("minimum-norm-classifier")
class MinimumNormClassifier(_MinimumNorm, LeastSquaresClassifier):
    """`MinimumNorm` on one-hot targets; the class of the largest output wins.

    Examples:
        >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> MinimumNormClassifier().fit(K, [0, 0, 1]).predict(K).tolist()
        [0, 0, 1]
    """

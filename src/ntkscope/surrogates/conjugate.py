"""Least squares on the conjugate kernel's features: its kernel machine without a Gram matrix, which squares their condition."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import from_numpy, tensor_of
from ntkscope.core.checked import Fraction, NonNegative, check_options, ranged, renamed
from ntkscope.linalg import FactoredGram, Gram, least_squares
from ntkscope.linalg.grams.mixed import product
from ntkscope.surrogates._base import Array, ScoreRegressor, as_array, keep
from ntkscope.surrogates._checks import float_targets, sample_weights, value_errors
from ntkscope.surrogates.registry import SURROGATES


@final
@SURROGATES.register("conjugate-least-squares")
class ConjugateLeastSquares(ScoreRegressor):
    """`f(x) = φ(x)·γ`, γ minimising `Σ_i v_i (y_i - f(x_i))² + α ‖γ‖²`, of minimum norm; O(n p min(n, p)).

    In exact arithmetic the kernel machine of `φ·φ'`; solved on the features it keeps the digits that the Gram matrix, with
    the squares of their singular values, has lost: "CKJ" in Qadeer et al., in the PNNL report (2023), equations 17, 18 and
    28. Give features (n, p) or a kernel that holds them: `ns.kernel("ck", model, x)`, whose bias is a feature of ones.
    Singular values up to `tol` times the largest count as zero; None is max(n, p) rounding units of the features' dtype.

    Fitted: `weights_` (outputs, p), `rank_`, `cutoff_`, `singular_values_` (None where QR did not need them), `residual_` (the
    largest relative residual of an output).

    Examples:
        >>> features = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
        >>> fitted = ConjugateLeastSquares().fit(features, [1.0, 3.0, 5.0])
        >>> fitted.weights_.round(12).tolist(), fitted.rank_
        ([[1.0, 2.0]], 2)
    """

    @renamed(ridge="alpha", rtol="tol")
    def __init__(self, alpha: NonNegative = 0.0, *, tol: Fraction | None = None) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> ConjugateLeastSquares:
        """Fit on features (n, p), or a kernel (n, n) that holds them, targets (n,) or (n, outputs), and weights (n,)."""
        check_options(self)
        features = self._features(K, reset=True)
        columns = self._as_columns(float_targets(features, y, "ConjugateLeastSquares"))
        weights = sample_weights(features, sample_weight)  # type: ignore[arg-type]
        found = least_squares(features, columns, ridge=self.alpha, weights=weights, rtol=self.tol)
        self.weights_ = np.ascontiguousarray(as_array(found.solution).T)
        self.rank_, self.cutoff_ = found.rank, found.cutoff
        self.singular_values_ = None if found.singular_values is None else as_array(found.singular_values)
        self.residual_ = float(found.relative_residual.max())
        return self

    def logits(self, K: Any) -> Array:
        """The outputs as a matrix (n_test, outputs) from features (n_test, p), or from a kernel that holds them."""
        check_is_fitted(self)
        features = self._features(K, reset=False)
        weights = torch.from_numpy(np.ascontiguousarray(self.weights_.T)).to(features.device)
        return as_array(product(features, weights))

    def _features(self, K: Any, *, reset: bool) -> Tensor:
        """The features of the rows of K, finite, as many as in `fit`."""
        if isinstance(K, Gram):
            features = self._held(K, reset)
        elif isinstance(K, Tensor):
            features = K
        else:
            kinds = [np.float64, np.float32]
            features = from_numpy(validate_data(self, K, reset=reset, dtype=kinds, ensure_all_finite=False))
        with value_errors():
            features = tensor_of(features, "features", 2, keep=True, empty=not reset)
        if reset:
            self.n_features_in_ = features.shape[1]
        elif features.shape[1] != self.n_features_in_:
            raise UsageError(
                f"got features of shape {tuple(features.shape)} for ConjugateLeastSquares fitted on {self.n_features_in_}"
                f" features; expected (n_test, {self.n_features_in_})"
            )
        return ranged(features, "features")

    def _held(self, gram: Gram, reset: bool) -> Tensor:
        if not isinstance(gram, FactoredGram):
            raise UsageError(
                f"got {gram!r}, which does not hold its features; expected features (n, p), or ns.kernel('ck', …) computed in"
                " memory (without store=): for a kernel alone use MinimumNorm or KernelRidge"
            )
        if reset and not gram.symmetric:
            raise UsageError(
                f"got the cross kernel {gram!r} for training; expected the square kernel (n_train, n_train) of the training"
                " inputs with themselves"
            )
        columns = gram.shape[1]
        if reset:
            self._columns = columns
        elif getattr(self, "_columns", None) not in (None, columns):
            raise UsageError(
                f"got a test kernel of shape {gram.shape} for ConjugateLeastSquares fitted on {self._columns} training points;"
                f" expected (n_test, {self._columns}): rows are test inputs, columns the training inputs"
            )
        return gram.left.detach()

"""Checks of incoming kernels and labels, with errors that state what was got, what was expected and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import finite, from_numpy, plain_array
from ntkscope.core.checked import check_options, ranged, within
from ntkscope.linalg import Gram, as_gram

NEEDED = "a finite number > 0: without it, classes that can be told apart have no optimum"
Strength: TypeAlias = Annotated[float, within(above=0, expected=NEEDED)]
MultiClass: TypeAlias = Annotated[str, ("multinomial", "ovr")]


class KernelNotFinite(NumericalError, ValueError):
    """A kernel with NaN or infinite entries."""


@contextmanager
def value_errors() -> Iterator[None]:
    """What is not finite is a `ValueError` too, as scikit-learn has it."""
    try:
        yield
    except NumericalError as error:
        raise KernelNotFinite(str(error)) from error


def training_kernel(estimator: BaseEstimator, K: Any) -> Gram:
    """`K` as a finite symmetric Gram, once the options are checked; sets what scikit-learn expects (`n_features_in_`, …)."""
    check_options(estimator)
    gram = _as_finite_gram(estimator, K, symmetric=True, reset=True)
    n, m = gram.shape
    if n < 1:
        raise UsageError(f"got a kernel of shape {(n, m)}; expected at least one training point")
    return gram


def fitted_kernel(estimator: BaseEstimator, K: Any) -> Gram:
    """The kernel of a fitted estimator's training points once more, for what leaves one of them out."""
    check_is_fitted(estimator)
    rows, points = (K if hasattr(K, "shape") else np.asarray(K)).shape[0], estimator.n_features_in_
    if rows != points:
        raise UsageError(f"leave_one_out got a kernel of {rows} rows; expected the {points} training points")
    return _as_finite_gram(estimator, K, symmetric=True, reset=False)


def query_kernel(estimator: BaseEstimator, K: Any) -> Gram:
    """`K` of shape (n_test, n_train) as a finite Gram whose columns are the training points."""
    return _as_finite_gram(estimator, K, symmetric=False, reset=False)


def _as_finite_gram(estimator: BaseEstimator, K: Any, *, symmetric: bool, reset: bool) -> Gram:
    ours = isinstance(K, Gram | Tensor)
    if not ours:  # scikit-learn's validation: refuses sparse and complex input, converts lists and frames, keeps names
        given = K
        try:
            K = validate_data(estimator, K, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False)
        except ValueError as error:
            _check_array_finite(given)  # report the worse of two faults
            shape = plain_array(given, "K").shape
            if not reset and len(shape) == 2 and shape[1] != estimator.n_features_in_:
                raise UsageError(f"{error} {_columns(estimator, shape)}") from error
            raise
    shape = tuple(K.shape)
    if symmetric and (len(shape) != 2 or shape[0] != shape[1]):
        _check_array_finite(K)
        raise UsageError(
            f"got a training kernel of shape {shape}; expected a square one (n_train, n_train), the kernel of the"
            " training inputs with themselves: this estimator takes kernels, not inputs"
        )
    if ours:
        if reset:
            estimator.n_features_in_ = shape[1]
        elif len(shape) != 2 or shape[1] != estimator.n_features_in_:
            raise UsageError(_columns(estimator, shape))
    with value_errors():
        gram = as_gram(ranged(K.detach() if isinstance(K, Tensor) else K, "K"), symmetric=symmetric)
    if isinstance(K, Gram):
        _check_products_finite(gram)
    return gram


def _columns(estimator: BaseEstimator, shape: tuple[int, ...]) -> str:
    n = estimator.n_features_in_
    return (
        f"got a test kernel of shape {shape} for {type(estimator).__name__} fitted on {n} training points; expected"
        f" (n_test, {n}): rows are test inputs, columns the training inputs (transpose it if it is the other way round)"
    )


def _check_array_finite(K: Any) -> None:
    if isinstance(K, np.ndarray) and K.dtype.kind == "f" and not np.isfinite(K).all():
        raise KernelNotFinite(f"got a matrix of shape {K.shape} with NaN or infinite values; expected a finite kernel")


def _check_products_finite(gram: Gram) -> None:
    """One product finds NaN and infinity wherever they are, also in a kernel that is never formed."""
    sums = gram @ torch.ones(gram.shape[1], 1, dtype=torch.float64, device=gram.device)
    bad = (~torch.isfinite(sums[:, 0])).nonzero().flatten().tolist()
    if bad:
        raise KernelNotFinite(
            f"{gram!r} holds NaN or infinite values in {len(bad)} rows, the first {bad[0]}; check the inputs or"
            " activations it was computed from"
        )


def class_labels(gram: Gram | Tensor, y: Any, owner: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, sorted, and each row's class number; at least two classes, one label per row of a kernel or of inputs."""
    labels = column_or_1d(_plain(y, owner), warn=True)
    if len(labels) != gram.shape[0]:
        found = len(set(labels.tolist()))
        raise UsageError(
            f"got {len(labels)} labels ({found} classes) for {_what(gram)} of {gram.shape[0]} rows; inconsistent numbers of"
            " samples: expected one label for each training point"
        )
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise UsageError(
            f"{owner} got labels of one class ({classes[0]!r}) for {len(labels)} rows; expected at least two classes: with"
            " 1 class there is nothing to tell apart"
        )
    return classes, numbers.astype(np.int64)


def float_targets(gram: Gram | Tensor, y: Any, owner: str, classifier: str | None = None) -> Tensor:
    """Regression targets (n,) or (n, outputs) in float64 on the device of the kernel or of the inputs."""
    values = plain_array(_plain(y, owner), "y")
    if values.ndim not in (1, 2) or len(values) != gram.shape[0]:
        raise UsageError(
            f"got targets of shape {values.shape} for {_what(gram)} of {gram.shape[0]} rows; inconsistent numbers of samples:"
            " expected one target, or one row of them, for each training point"
        )
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{owner} got targets of dtype {values.dtype}; expected numbers: for class labels use the classifier"
            f" ({classifier or f'{owner}Classifier'})"
        ) from error
    with value_errors():
        return ranged(from_numpy(finite(values, "y")), "y").to(gram.device)


def sample_weights(gram: Gram, sample_weight: Any) -> Tensor | None:
    """Weights (n,), not negative and not all zero, in float64 on the kernel's device; None stays None."""
    if sample_weight is None:
        return None
    weights = plain_array(sample_weight, "sample_weight").astype(np.float64)
    weights = np.full(gram.shape[0], float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (gram.shape[0],) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise UsageError(
            f"got sample_weight of shape {weights.shape} (smallest {weights.min() if weights.size else None}); expected"
            f" ({gram.shape[0]},), finite, none negative, not all zero"
        )
    return from_numpy(weights).to(gram.device)


def two_classes_weigh(numbers: NDArray[np.int64], weights: Tensor | None, owner: str) -> None:
    """Refuse weights that leave points of one class only."""
    if weights is not None and len(np.unique(numbers[weights.cpu().numpy() > 0])) < 2:
        raise UsageError(
            f"{owner} got sample_weight that leaves points of one class only; expected positive weights in at least two classes"
        )


def _what(rows: Gram | Tensor) -> str:
    return "inputs" if isinstance(rows, Tensor) else "a kernel"


def _plain(y: Any, owner: str) -> Any:
    if y is None:
        raise UsageError(
            f"{owner} requires y to be passed, but the target y is None; expected one label per row of the kernel"
        )
    return y.detach().cpu().numpy() if isinstance(y, Tensor) else y

"""Arguments of measures as checked float64 arrays; errors say what was got, what was expected, what to do."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError

Vector: TypeAlias = Float64[np.ndarray, " n"]
Matrix: TypeAlias = Float64[np.ndarray, "n c"]
Labels: TypeAlias = Int64[np.ndarray, " n"]


def plain_array(values: Any) -> np.ndarray:
    """`values` (a tensor, a Gram, a list or an array) as a NumPy array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return values.double().numpy() if values.is_floating_point() else values.numpy()
    return np.asarray(values)


def finite(values: Any, name: str, axes: int) -> np.ndarray:
    """A float64 array with `axes` axes and no NaN or infinity in it."""
    try:
        array = plain_array(values)
    except ValueError as error:  # rows of different lengths
        raise UsageError(f"got {name} that is no array ({error}); expected real numbers with {axes} axes") from None
    if array.ndim != axes or array.dtype.kind not in "fiub":
        raise UsageError(f"got {name} as {array.dtype} of shape {array.shape}; expected real numbers with {axes} axes")
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        bad = np.argwhere(~np.isfinite(wide))
        raise NumericalError(
            f"{name} holds {len(bad)} values that are NaN or infinite, the first at {tuple(bad[0].tolist())};"
            " drop those items or find where they come from"
        )
    return wide


def vector(values: Any, name: str) -> Vector:
    return finite(values, name, 1)


def two_vectors(a: Any, b: Any, least: int = 2) -> tuple[Vector, Vector]:
    """Two vectors of one length, at least `least`."""
    left, right = vector(a, "the first argument"), vector(b, "the second argument")
    if len(left) != len(right) or len(left) < least:
        raise UsageError(
            f"got {len(left)} and {len(right)} values; expected one of each per item, for at least {least} items"
        )
    return left, right


def order_of(values: Any, name: str) -> Labels:
    """The rank of each value, equal for equal ones, in the values' own type: integers beyond 2⁵³ are not rounded together.

    >>> order_of([2**60 + 1, 2**60, 2**70], "scores").tolist()
    [1, 0, 2]
    """
    array = plain_array(values)
    whole = array.ndim == 1 and len(array) > 0 and array.dtype.kind in "fO"
    if whole and not isinstance(values, np.ndarray | Tensor):  # a sequence that NumPy may have rounded to floats
        items = list(values)
        if all(isinstance(item, int | np.integer) for item in items):
            number = {item: place for place, item in enumerate(sorted(set(map(int, items))))}
            return np.array([number[int(item)] for item in items], dtype=np.int64)
    finite(array, name, 1)
    return np.unique(array, return_inverse=True)[1].astype(np.int64).reshape(-1)


def two_orders(a: Any, b: Any, least: int = 2) -> tuple[Labels, Labels]:
    """The ranks of two scores of the same items, at least `least`."""
    left, right = order_of(a, "the first argument"), order_of(b, "the second argument")
    if len(left) != len(right) or len(left) < least:
        raise UsageError(
            f"got {len(left)} and {len(right)} values; expected one of each per item, for at least {least} items"
        )
    return left, right


def logits_of(values: Any, name: str = "logits") -> Matrix:
    """Logits (n, c) with at least one item and two classes."""
    logits: Matrix = finite(values, name, 2)
    if logits.shape[0] < 1 or logits.shape[1] < 2:
        raise UsageError(
            f"got {name} of shape {logits.shape}; expected (items, classes) with at least two classes: one logit z of two"
            " classes is the pair (0, z)"
        )
    return logits


def two_logits(a: Any, b: Any) -> tuple[Matrix, Matrix]:
    left, right = logits_of(a, "the surrogate's logits"), logits_of(b, "the network's logits")
    if left.shape != right.shape:
        raise UsageError(f"got logits of shapes {left.shape} and {right.shape}; expected the same items and classes")
    return left, right


def labels_of(y: Any, items: int, classes: int | None = None) -> Labels:
    """Labels as int64, one per item, in 0 … classes - 1."""
    array = plain_array(y)
    if array.shape != (items,):
        raise UsageError(f"got labels of shape {array.shape} for {items} items; expected ({items},)")
    labels = array.astype(np.int64) if array.dtype.kind in "iufb" else None
    if labels is None or (labels != array).any() or (items and labels.min() < 0):
        raise UsageError(f"got labels of dtype {array.dtype}; expected whole numbers from 0: encode them first")
    if classes is not None and items and labels.max() >= classes:
        raise UsageError(f"got the label {labels.max()} with {classes} classes; expected 0 … {classes - 1}")
    return labels

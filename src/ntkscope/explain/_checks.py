"""Arguments of explanations: kernels as Grams, labels as whole numbers, masks as booleans."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Int64
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.linalg import Gram, as_gram


def kernel_of(K: Any) -> Gram:
    """`K` as a Gram whose rows are samples."""
    gram = as_gram(K if isinstance(K, Gram | Tensor | np.ndarray) else np.asarray(K, dtype=np.float64), symmetric=None)
    if gram.outputs != 1:
        raise UsageError(
            f"got {gram!r}; expected one row per sample: explanations need a kernel such as 'trntk' or 'ck'"
        )
    return gram


def plain(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def train_labels(y: Any, items: int) -> Int64[np.ndarray, " n"]:
    """Labels 0, 1, … of the training points, one each."""
    labels = plain(y)
    if labels.shape != (items,):
        raise UsageError(f"got labels of shape {labels.shape} for {items} training points; expected ({items},)")
    if labels.dtype.kind not in "iub" or (items and labels.min() < 0):
        raise UsageError(f"got labels of dtype {labels.dtype}; expected whole numbers from 0: encode them first")
    return labels.astype(np.int64)


def mask_of(values: Any, items: int | None, name: str) -> Bool[np.ndarray, " n"]:
    """A boolean mask, one value per item."""
    mask = plain(values)
    if mask.ndim != 1 or (items is not None and len(mask) != items) or not np.isin(mask, (0, 1)).all():
        expected = "one boolean per item" if items is None else f"({items},), one boolean per item"
        raise UsageError(f"got {name} as {mask.dtype} of shape {mask.shape}; expected {expected}")
    return mask.astype(bool)


def columns_of(surrogate: Any, y: Any, outputs: int) -> Int64[np.ndarray, " n"]:
    """The logit that belongs to each label: by the surrogate's `classes_`, else the label itself."""
    labels, classes = plain(y), getattr(surrogate, "classes_", None)
    if classes is None:
        columns = train_labels(labels, len(labels))
        if len(columns) and columns.max() >= outputs:
            raise UsageError(f"got the label {columns.max()} with {outputs} outputs; expected 0 … {outputs - 1}")
        return columns
    known = np.asarray(classes)
    columns = np.searchsorted(known, labels).clip(0, len(known) - 1)
    if (known[columns] != labels).any():
        raise UsageError(f"got labels that the surrogate was not fitted on; expected some of {known.tolist()[:20]}")
    return columns.astype(np.int64)

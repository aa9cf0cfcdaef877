"""Arguments of explanations: kernels as Grams whose rows are samples, labels as columns of a surrogate's logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int64

from ntkscope.core import UsageError
from ntkscope.core.arguments import labels_of, plain_array
from ntkscope.linalg import Gram, as_gram


def kernel_of(K: Any) -> Gram:
    """`K` as a Gram whose rows are samples."""
    gram = as_gram(K)
    if gram.outputs != 1:
        raise UsageError(
            f"got {gram!r}; expected one row per sample: explanations need a kernel such as 'trntk' or 'ck'"
        )
    return gram


def columns_of(surrogate: Any, y: Any, outputs: int) -> Int64[np.ndarray, " n"]:
    """The logit that belongs to each label: by the surrogate's `classes_`, else the label itself."""
    labels, classes = plain_array(y, "labels"), getattr(surrogate, "classes_", None)
    if classes is None:
        return labels_of(labels, None, outputs)
    known = np.asarray(classes)
    columns = np.searchsorted(known, labels).clip(0, len(known) - 1)
    if (known[columns] != labels).any():
        raise UsageError(f"got labels that the surrogate was not fitted on; expected some of {known.tolist()[:20]}")
    return columns.astype(np.int64)

"""Forensics: whether a test input looks poisoned, judged by the training points most similar to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool

from ntkscope.core import UsageError
from ntkscope.core.arguments import mask_of
from ntkscope.explain._kernels import kernel_of
from ntkscope.explain.detection import Detection, score
from ntkscope.explain.examples import nearest

__all__ = ["Detection", "flag", "score"]


def flag(K_test: Any, poisoned: Any, neighbours: int = 5, threshold: int = 3) -> Bool[np.ndarray, " m"]:
    """True where at least `threshold` of the `neighbours` most similar training points are poisoned; O(n_test n_train).

    `poisoned`: the mask of the training points known to be poisoned. Similarity is the signed kernel value.
    Engel et al. (2023), section 4: three of five.

    Examples:
        >>> K = np.array([[0.9, 0.8, 0.1, 0.0], [0.0, 0.1, 0.8, 0.9]])
        >>> flag(K, [True, True, False, False], neighbours=2, threshold=2).tolist()
        [True, False]
    """
    gram = kernel_of(K_test)
    mask = mask_of(poisoned, gram.shape[1], "the mask of poisoned training points")
    if not 1 <= threshold <= neighbours:
        raise UsageError(f"got threshold={threshold} of neighbours={neighbours}; expected 1 … {neighbours}")
    return mask[nearest(gram, neighbours).indices].sum(1) >= threshold

"""Probabilities from logits in double precision, without saturation."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax

from ntkscope.core.arguments import Matrix, Vector, labels_of, logits_of
from ntkscope.core.checked import Numbers


def correct_class_log_odds(logits: Any, y: Any) -> Vector:
    """`log p_y - log(1 - p_y) = z_y - log Σ_{k≠y} exp z_k` of each item; O(nc).

    Probabilities round to 1 for log-odds of 37 and more, and then tie; log-odds do not.

    Examples:
        >>> correct_class_log_odds([[0.0, 100.0], [0.0, -3.0]], [1, 1]).tolist()
        [100.0, -3.0]
    """
    z = logits_of(logits)
    labels = labels_of(y, *z.shape)
    rows = np.arange(len(z))
    others = z.copy()
    others[rows, labels] = -np.inf
    return z[rows, labels] - logsumexp(others, axis=1)


def centred_logits(logits: Numbers) -> Matrix:
    """The logits minus their mean over the classes of each item, which the softmax does not depend on.

    Examples:
        >>> centred_logits([[3.0, 1.0]]).tolist()
        [[1.0, -1.0]]
    """
    z = logits_of(logits)
    return z - z.mean(1, keepdims=True)


def probabilities(logits: Any) -> Matrix:
    """The softmax of each row, in float64.

    Examples:
        >>> probabilities([[0.0, 0.0], [1000.0, 0.0]]).tolist()
        [[0.5, 0.5], [1.0, 0.0]]
    """
    return softmax(logits_of(logits), axis=1)

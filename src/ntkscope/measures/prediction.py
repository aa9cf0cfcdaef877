"""How two classifiers' predictions on the same items compare, per item and on average."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import NumericalError
from ntkscope.core.arguments import Vector, labels_of, logits_of, two_logits, two_vectors
from ntkscope.measures.log_odds import probabilities
from ntkscope.measures.registry import measure


@measure("accuracy", of="logits and labels", low=0, high=1, best=1)
def accuracy(logits: Any, y: Any) -> float:
    """The share of items whose largest logit is that of their label; O(nc). A tie goes to the lower class.

    Examples:
        >>> accuracy([[2.0, 1.0], [0.0, 1.0]], [0, 0])
        0.5
    """
    return float(correct(logits, y).mean())


@measure("tad", of="two logits and labels", low=-100, high=100, best=0)
def tad(surrogate_logits: Any, network_logits: Any, y: Any) -> float:
    """Test-accuracy differential in percentage points: `100 (accuracy of the surrogate - accuracy of the network)`.

    Engel et al., "Faithful and efficient explanations for neural networks via neural tangent kernel surrogate models"
    (2023), section 3. Zero does not mean agreement: two models may err on different items.

    Examples:
        >>> tad([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]], [0, 0])
        -50.0
    """
    surrogate, network = two_logits(surrogate_logits, network_logits)
    return 100 * (accuracy(surrogate, y) - accuracy(network, y))


@measure("agreement", of="two logits", low=0, high=1, best=1)
def agreement(a: Any, b: Any) -> float:
    """The share of items for which both predict the same class; O(nc).

    Examples:
        >>> agreement([[1.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [1.0, 0.0]])
        0.5
    """
    left, right = two_logits(a, b)
    return float((left.argmax(1) == right.argmax(1)).mean())


@measure("total-variation", of="two logits", low=0, high=1, best=0)
def total_variation(a: Any, b: Any) -> float:
    """The mean over items of `½ Σ_c |p_c - q_c|` between the two softmax vectors; O(nc).

    Examples:
        >>> round(total_variation([[0.0, 0.0]], [[100.0, 0.0]]), 6)
        0.5
    """
    return float(item_total_variation(a, b).mean())


@measure("pearson", of="two scores", low=-1, high=1, best=1, squares=True)
def pearson(a: Any, b: Any) -> float:
    """Pearson's correlation of two scores of the same items; O(n).

    Two clusters of items, confident and unconfident, raise it whatever the order within them; Kendall's τ is not affected.

    Examples:
        >>> round(pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), 12)
        1.0
    """
    left, right = two_vectors(a, b)
    left, right = left - left.mean(), right - right.mean()
    sizes = np.linalg.norm(left) * np.linalg.norm(right)
    if sizes == 0:
        raise NumericalError("one of the scores is constant: Pearson's correlation with it is undefined")
    return float(np.clip(left @ right / sizes, -1, 1))


def correct(logits: Any, y: Any) -> np.ndarray:
    """Whether each item's largest logit is that of its label.

    Examples:
        >>> correct([[2.0, 1.0], [0.0, 3.0]], [0, 0])
        array([ True, False])
    """
    z = logits_of(logits)
    return z.argmax(1) == labels_of(y, *z.shape)


def item_total_variation(a: Any, b: Any) -> Vector:
    """`½ Σ_c |p_c - q_c|` of each item.

    Examples:
        >>> item_total_variation([[0.0, 0.0], [9.0, 0.0]], [[0.0, 0.0], [0.0, 9.0]]).round(3)
        array([0., 1.])
    """
    left, right = two_logits(a, b)
    return np.abs(probabilities(left) - probabilities(right)).sum(1) / 2

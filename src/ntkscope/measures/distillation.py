"""How well a surrogate reproduces the network's own answers: where the network is wrong, and logit by logit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import NumericalError
from ntkscope.core.arguments import labels_of, two_logits
from ntkscope.measures.log_odds import centred_logits
from ntkscope.measures.registry import measure


@measure("agreement-wrong", of="two logits and labels", low=0, high=1, best=1)
def agreement_wrong(surrogate_logits: Any, network_logits: Any, y: Any) -> float:
    """The share of the items the network gets wrong on which both predict the same class; O(nc).

    A surrogate fitted to the labels can agree with an accurate network nearly everywhere and on none of these.

    Examples:
        >>> agreement_wrong([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]], [0, 1, 1])
        0.5
    """
    same, wrong = same_where_wrong(surrogate_logits, network_logits, y)
    if not wrong:
        raise NumericalError("the network gets every item right: agreement on its errors is undefined; use more items")
    return same / wrong


@measure("r2-logits", of="two logits", high=1, best=1, squares=True)
def r2_logits(surrogate_logits: Any, network_logits: Any) -> float:
    """`1 - Σ‖f - g‖² / Σ‖f - mean f‖²` of the network's logits f and the surrogate's g, both centred over classes; O(nc).

    Examples:
        >>> r2_logits([[1.0, 0.0], [0.0, 1.0]], [[6.0, 5.0], [0.0, 1.0]])
        1.0
    """
    surrogate, network = (centred_logits(z) for z in two_logits(surrogate_logits, network_logits))
    spread = float(np.square(network - network.mean(0)).sum())
    if spread == 0:
        raise NumericalError("the network gives every item the same logits: R² of them is undefined")
    return 1 - float(np.square(network - surrogate).sum()) / spread


def same_where_wrong(surrogate_logits: Any, network_logits: Any, y: Any) -> tuple[int, int]:
    """On how many of the items the network gets wrong both predict the same class, and how many these are.

    Examples:
        >>> same_where_wrong([[1.0, 0.0]], [[1.0, 0.0]], [0])
        (0, 0)
    """
    surrogate, network = two_logits(surrogate_logits, network_logits)
    predicted = network.argmax(1)
    wrong = predicted != labels_of(y, *network.shape)
    return int((surrogate.argmax(1) == predicted)[wrong].sum()), int(wrong.sum())

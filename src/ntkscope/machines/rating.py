"""How faithful a kernel machine is to its network: the figures of faithfulness, and every other registered measure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ntkscope.core import NumericalError
from ntkscope.measures import MEASURES
from ntkscope.measures.faithfulness import Faithfulness, faithfulness


@dataclass(frozen=True)
class Rating:
    """The figures every surrogate is judged by, and `more`: other registered measures of two logits, by name."""

    figures: Faithfulness
    more: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a record: the figures, and `more` if there is any."""
        return {**self.figures.to_json(), **({"more": dict(self.more)} if self.more else {})}


def rate(logits: Any, network: Any, y: Any, *, bootstrap: int = 1000, seed: int = 0) -> Rating:
    """How faithful a surrogate's `logits` (n, c) are to the `network`'s (n, c) at inputs with the labels `y` (n,).

    Examples:
        >>> network, surrogate = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
        >>> figures = rate(surrogate, network, [0, 1], bootstrap=50).figures
        >>> figures.agreement, figures.network_accuracy, figures.surrogate_accuracy
        (0.5, 1.0, 0.5)
    """
    known = [figure.name.replace("_", "-") for figure in fields(Faithfulness)]
    arrays = {"two logits": (logits, network), "two logits and labels": (logits, network, y)}
    figures = faithfulness(logits, network, y, bootstrap=bootstrap, seed=seed)
    return Rating(figures, other_measures(known, arrays))


def other_measures(known: Collection[str], arrays: Mapping[str, tuple[Any, ...]]) -> dict[str, float]:
    """The registered measures that are not `known`, of the arrays each is a function of; NaN where one is undefined.

    >>> import numpy as np
    >>> other_measures(["total-variation"], {"two logits": (np.eye(2), np.eye(2))})
    {'agreement': 1.0, 'r2-logits': 1.0}
    """
    found = {}
    for name, measure in MEASURES.items():
        if name not in known and measure.of in arrays:
            try:
                found[name] = float(measure(*arrays[measure.of]))
            except NumericalError:
                found[name] = math.nan
    return found

"""Trust: whether a surrogate may stand for the network, on the whole and for one test item.

On the whole: how often both predict the same class on test items, which the surrogate was not fitted to; how often where the
network is wrong, where explanations matter most and a fit of labels fails first; how alike they rank the items, and how much
of the logits is missed. For one item: whether both predict the same class, and how far apart their logits are, measured in
the network's typical margin.

The thresholds were set on networks that were trained, half-trained, untrained and trained on shuffled labels, X-rayed on many
and on few items, so that "do not trust" meets surrogates that disagree on fresh items and spares those that agree:
`python -m benchmarks.trust`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.measures.log_odds import centred_logits
from ntkscope.measures.uncertainty import wilson_interval

LEVELS = ("do not trust", "medium", "high")


class Rated(Protocol):
    """The figures of a surrogate that a verdict needs, as a row of the X-ray's table has them."""

    @property
    def agreement(self) -> float: ...
    @property
    def wrong(self) -> int: ...
    @property
    def agreement_wrong(self) -> float: ...
    @property
    def tau_low(self) -> float: ...
    @property
    def r2_logits(self) -> float: ...


@dataclass(frozen=True)
class Trust:
    """`level`: 2 high, 1 medium, 0 do not trust; `why`: in a sentence or two."""

    level: int
    why: str

    @property
    def word(self) -> str:
        return LEVELS[self.level]


@dataclass(frozen=True)
class Demand:
    """One figure of a surrogate: below `least` it must not be trusted, from `enough` on it speaks for high trust."""

    least: float
    enough: float

    def level(self, value: float) -> int:
        """An undefined figure speaks neither for nor against."""
        return 1 if math.isnan(value) else 0 if value < self.least else 2 if value >= self.enough else 1


AGREEMENT = Demand(0.8, 0.93)  # lower end of Wilson's interval for `enough`
ERRORS = Demand(0.5, 0.7)
TAU = Demand(0.3, 0.7)
LOGITS = Demand(0.3, 0.9)
ITEM = (0.25, 1.0)  # distance of logits, in typical margins: high up to the first, do not trust beyond the second


def page_trust(row: Rated | None, items: int) -> Trust:
    """How far the surrogate of that row may be trusted, from its figures on `items` test items; None: it was not rated."""
    if row is None:
        return Trust(0, "The surrogates could not be compared with the network.")
    levels = (
        AGREEMENT.level(row.agreement),
        ERRORS.level(row.agreement_wrong),
        TAU.level(row.tau_low),
        LOGITS.level(row.r2_logits),
    )
    return Trust(min(levels), str(levels))


def item_trust(
    surrogate: Float64[np.ndarray, "m c"], network: Float64[np.ndarray, "m c"], page: int
) -> Int64[np.ndarray, " m"]:
    """How far each test item's explanation may be trusted, from the logits of all of them.

    The distance `‖f - g‖` of the centred logits is measured in the median margin between the network's two largest logits.
    Items on a page that must not be trusted get medium at best.

    >>> network = np.array([[4.0, 0.0], [4.0, 0.0], [1.0, 0.0]])
    >>> item_trust(np.array([[3.9, 0.0], [2.0, 0.0], [0.0, 1.0]]), network, 2).tolist()
    [2, 1, 0]
    """
    f, g = centred_logits(network), centred_logits(surrogate)
    largest = np.sort(f, axis=1)
    typical = float(np.median(largest[:, -1] - largest[:, -2]))
    distance = np.linalg.norm(f - g, axis=1)
    level = (distance <= ITEM[0] * typical).astype(np.int64) + (distance <= ITEM[1] * typical)
    level[f.argmax(1) != g.argmax(1)] = 0
    return np.minimum(level, 1 + (page > 0))

"""Trust: whether a surrogate may stand for the network, on the whole and for one test item.

On the whole: how often both predict the same class on test items, which the surrogate was not fitted to; how often where the
network is wrong, where explanations matter most and a fit of labels fails first; how alike they rank the items; how much of
the logits is missed. For one item: whether both predict the same class, and how far apart their logits are, measured in the
network's typical margin.

The thresholds were set on networks that were trained, half-trained, untrained and trained on shuffled labels, X-rayed on many
and on few of their training items, so that "do not trust" meets surrogates that disagree on fresh items and spares those that
agree: `python -m benchmarks.learning.trust`.

Of a regression, on the whole: how much of the network's outputs the surrogate explains on test items, and how alike both rank
them; the worst output decides. For one item: how far apart both are, measured in the spread of the network's outputs.
`tests/xray/test_regression.py` has networks that were trained, untrained and trained on shuffled targets on either side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.measures.log_odds import centred_logits
from ntkscope.measures.uncertainty import wilson_interval

LEVELS = ("do not trust", "medium", "high")
AGREEMENT = (0.8, 0.93)  # below the first: do not trust; high needs an interval that ends above the second
ERRORS = (0.5, 0.6)  # the same, for agreement on the network's errors
SOME = 3  # errors from which disagreement on more than half of them is evidence
TAU = (0.0, 0.7)  # lower end of τ
LOGITS = 0.5  # R² of logits that high trust needs; a fit of labels may predict as the network does and still be below
NEARLY = (0.7, 0.9, 0.99)  # agreement on errors, lower end of τ, R²: they make up for a wide interval of few errors
R2 = (0.5, 0.9)  # of a regression: below the first, do not trust; high needs an interval that ends above the second
ITEM = (0.25, 1.0)  # distance of logits, in typical margins: high up to the first, do not trust beyond the second
ITEM_OUTPUTS = (0.25, 0.75)  # the same, of a regression, in standard deviations of the output


@dataclass(frozen=True)
class Trust:
    """`level`: 2 high, 1 medium, 0 do not trust or not `measured`; `why`: in a few sentences."""

    level: int
    why: str
    measured: bool = True

    @property
    def word(self) -> str:
        return LEVELS[self.level] if self.measured else "not measured"

    @classmethod
    def of(cls, found: str, against: Sequence[str], doubts: Sequence[str]) -> Trust:
        """What was found, with the reasons not to trust it, else with what keeps trust from being high."""
        said = " ".join([found, *(against or doubts)])
        return cls(0 if against else 1 if doubts else 2, said)


UNRATED = Trust(0, "The surrogates were left out.", measured=False)


def page_trust(row: Any, items: int) -> Trust:
    """How far the surrogate of a row of the table may be trusted, from its figures on `items` test items; None: left out.

    >>> from types import SimpleNamespace
    >>> row = SimpleNamespace(agreement=0.99, wrong=20, agreement_wrong=0.4, tau_low=0.6, r2_logits=0.8)
    >>> page_trust(row, 400).word
    'do not trust'
    """
    if row is None:
        return UNRATED
    same = round(row.agreement_wrong * row.wrong) if row.wrong else 0
    found = f"The surrogate predicts the network's class on {100 * row.agreement:.1f} % of {items:,} test items"
    found += f" and on {same:,} of the {row.wrong:,} it gets wrong." if row.wrong else ", none of which it gets wrong."
    return Trust.of(found, _against(row, same), _doubts(row, items, same))


def _against(row: Any, same: int) -> list[str]:
    """Reasons not to trust it."""
    found = []
    if row.agreement < AGREEMENT[0]:
        found.append(f"It disagrees too often: below {100 * AGREEMENT[0]:.0f} % it is another classifier.")
    if row.wrong >= SOME and same < ERRORS[0] * row.wrong:
        found.append(
            "It does not give the network's answer on most of the network's errors, so it cannot explain them."
        )
    if row.tau_low < TAU[0]:
        found.append(
            "Its ranking of the items may be unrelated to the network's (the interval of τ includes values below 0)."
        )
    return found


def _doubts(row: Any, items: int, same: int) -> list[str]:
    """What keeps trust from being high."""
    found = []
    low = wilson_interval(round(row.agreement * items), items)[0]
    if low < AGREEMENT[1]:
        found.append(f"On other items it may agree on as few as {100 * low:.0f} %.")
    low = wilson_interval(same, row.wrong)[0]
    nearly = same >= NEARLY[0] * row.wrong and row.tau_low >= NEARLY[1] and row.r2_logits >= NEARLY[2]
    if low < ERRORS[1] and not nearly:
        found.append(
            f"On other errors it may agree on as few as {100 * low:.0f} %."
            if row.wrong
            else "How it does where the network is wrong is not known."
        )
    if not row.tau_low >= TAU[1]:
        found.append(_ranking(row.tau_low))
    if not row.r2_logits >= LOGITS:
        shown = "undefined" if math.isnan(row.r2_logits) else f"{row.r2_logits:.2f}"
        found.append(f"It misses part of the logits (R² {shown}).")
    return found


def _ranking(low: float) -> str:
    shown = "τ is undefined" if math.isnan(low) else f"τ may be as low as {low:.2f}"
    return f"It ranks the items differently in places ({shown})."


def item_trust(
    surrogate: Float64[np.ndarray, "m c"], network: Float64[np.ndarray, "m c"], page: int
) -> Int64[np.ndarray, " m"]:
    """How far each test item's explanation may be trusted, from the logits of all of them.

    The distance `‖f - g‖` of the centred logits is measured in the median margin between the network's two largest logits.
    Items where both predict different classes must not be trusted, and those on a page that must not be get medium at best.

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
    return np.minimum(level, 1 + int(page > 0))


def output_trust(row: Any, items: int) -> Trust:
    """How far the surrogate of that row may be trusted, from its figures on `items` test items; None: left out.

    >>> from types import SimpleNamespace
    >>> row = SimpleNamespace(worst_r2=0.97, worst_r2_low=0.95, worst_tau_low=0.8)
    >>> output_trust(row, 200).word, output_trust(SimpleNamespace(**{**vars(row), "worst_r2": 0.3}), 200).word
    ('high', 'do not trust')
    """
    if row is None:
        return UNRATED
    if math.isnan(row.worst_r2):
        return Trust(0, "The network gives every test item the same output, so no surrogate can be compared with it.")
    found = (
        f"The surrogate explains {100 * max(row.worst_r2, 0.0):.1f} % of the variance of the network's outputs on {items:,}"
        " test items (of its worst output, if it has several)."
    )
    against, doubts = [], []
    if row.worst_r2 < R2[0]:
        against.append(f"Below {100 * R2[0]:.0f} % it is another function.")
    if row.worst_tau_low < TAU[0]:
        against.append("Its ranking of the items may be unrelated to the network's (τ may be below 0).")
    if not row.worst_r2_low >= R2[1]:
        shown = "is not known" if math.isnan(row.worst_r2_low) else f"may be {max(100 * row.worst_r2_low, 0.0):.0f} %"
        doubts.append(f"On other items that share {shown}.")
    if not row.worst_tau_low >= TAU[1]:
        doubts.append(_ranking(row.worst_tau_low))
    return Trust.of(found, against, doubts)


def item_output_trust(
    surrogate: Float64[np.ndarray, "m d"], network: Float64[np.ndarray, "m d"], page: int
) -> Int64[np.ndarray, " m"]:
    """How far each test item's explanation may be trusted: the largest |f - g| over outputs, each in its own spread.

    Items on a page that must not be trusted get medium at best; an output that is the same for all items does not count.

    >>> network = np.array([[0.0], [2.0], [4.0]])
    >>> item_output_trust(network + np.array([[0.1], [1.0], [3.0]]), network, 2).tolist()
    [2, 1, 0]
    """
    spread = network.std(0)
    known = spread > 0
    if not known.any():
        return np.zeros(len(network), dtype=np.int64)
    distance = (np.abs(surrogate - network)[:, known] / spread[known]).max(1)
    level = (distance <= ITEM_OUTPUTS[0]).astype(np.int64) + (distance <= ITEM_OUTPUTS[1])
    return np.minimum(level, 1 + int(page > 0))

"""Trust in the surrogate of a regression: whether it may stand for the network, on the whole and for one test item.

On the whole: how much of the network's outputs it explains on test items, which it was not fitted to, and how alike both rank
them; the worst output decides. For one item: how far apart both are, measured in the spread of the network's outputs.
`tests/xray/test_regression.py` has networks that were trained, untrained and trained on shuffled targets on either side.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.xray.trust import Trust

R2 = (0.5, 0.9)  # below the first: do not trust; high needs an interval that ends above the second
TAU = (0.0, 0.7)  # lower end of τ
ITEM = (
    0.25,
    0.75,
)  # distance in standard deviations of the output: high up to the first, do not trust beyond the second


@runtime_checkable
class RatedOutputs(Protocol):
    """The figures of a surrogate that a verdict needs, as a row of the X-ray's table has them."""

    @property
    def worst_r2(self) -> float: ...
    @property
    def worst_r2_low(self) -> float: ...
    @property
    def worst_tau_low(self) -> float: ...


def output_trust(row: RatedOutputs | None, items: int) -> Trust:
    """How far the surrogate of that row may be trusted, from its figures on `items` test items; None: it was not rated.

    >>> from types import SimpleNamespace
    >>> row = SimpleNamespace(worst_r2=0.97, worst_r2_low=0.95, worst_tau_low=0.8)
    >>> output_trust(row, 200).word, output_trust(SimpleNamespace(**{**vars(row), "worst_r2": 0.3}), 200).word
    ('high', 'do not trust')
    """
    if row is None:
        return Trust(0, "The surrogates could not be compared with the network.")
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
    if against:
        return Trust(0, f"{found} {' '.join(against)}")
    if not row.worst_r2_low >= R2[1]:
        shown = "is not known" if math.isnan(row.worst_r2_low) else f"may be {max(100 * row.worst_r2_low, 0.0):.0f} %"
        doubts.append(f"On other items that share {shown}.")
    if not row.worst_tau_low >= TAU[1]:
        shown = "τ is undefined" if math.isnan(row.worst_tau_low) else f"τ may be as low as {row.worst_tau_low:.2f}"
        doubts.append(f"It ranks the items differently in places ({shown}).")
    return Trust(1, f"{found} {' '.join(doubts)}") if doubts else Trust(2, found)


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
    level = (distance <= ITEM[0]).astype(np.int64) + (distance <= ITEM[1])
    return np.minimum(level, 1 + int(page > 0))

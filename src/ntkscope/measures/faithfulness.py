"""Faithfulness: whether a surrogate and its network agree on the same items."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ntkscope.core import NumericalError
from ntkscope.core.arguments import labels_of, two_logits
from ntkscope.core.checked import CountOrZero
from ntkscope.core.files.plain import to_plain
from ntkscope.measures._studentised import of_pearson, of_r2
from ntkscope.measures.distillation import agreement_wrong, r2_logits, same_where_wrong
from ntkscope.measures.kendall import Kendall, kendall, kendall_tau
from ntkscope.measures.log_odds import correct_class_log_odds, probabilities
from ntkscope.measures.monotone import MonotoneFit, monotone_r2
from ntkscope.measures.prediction import (
    accuracy,
    agreement,
    correct,
    item_total_variation,
    pearson,
    tad,
    total_variation,
)
from ntkscope.measures.uncertainty import (
    Summary,
    percentile_interval,
    resampled_means,
    standard_error,
    summarise,
    wilson_interval,
)

__all__ = [
    "Faithfulness",
    "Kendall",
    "MonotoneFit",
    "Summary",
    "accuracy",
    "agreement",
    "agreement_wrong",
    "correct_class_log_odds",
    "faithfulness",
    "kendall",
    "kendall_tau",
    "monotone_r2",
    "pearson",
    "probabilities",
    "r2_logits",
    "standard_error",
    "summarise",
    "tad",
    "total_variation",
]


@dataclass(frozen=True)
class Faithfulness:
    """One surrogate against one network on one test set; `intervals` holds the 95 % interval of each figure by its name.

    `tau` is τ-b of the correct-class log-odds, `tau_literal` counts ties as discordant, `ties` the tied
    pairs of `pairs`. `tad` is in percentage points. `r2` is after the fitted monotone map, `r2_before` without it and
    `r2_isotonic` what no monotone map exceeds; `pearson` is of correct-class probabilities. `agreement_wrong` is the agreement
    on the `wrong` items that the network gets wrong, with Wilson's interval; `r2_logits` is of all logits, centred over
    classes. A figure that is undefined (a constant score, no wrong items) is NaN.
    """

    tau: float
    tau_literal: float
    ties: int
    pairs: int
    tad: float
    agreement: float
    r2: float
    r2_before: float
    r2_isotonic: float
    pearson: float
    total_variation: float
    network_accuracy: float
    surrogate_accuracy: float
    items: int
    wrong: int = 0
    agreement_wrong: float = math.nan
    r2_logits: float = math.nan
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values that a record can hold."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def __str__(self) -> str:
        low, high = self.intervals.get("tau", (math.nan, math.nan))
        return (
            f"τ {self.tau:.3f} [{low:.3f}, {high:.3f}], TAD {self.tad:+.2f} points, agreement {100 * self.agreement:.2f} %,"
            f" R² {self.r2:.3f}, Pearson {self.pearson:.3f}, {self.items} items"
        )


def faithfulness(
    surrogate_logits: Any, network_logits: Any, y: Any, *, bootstrap: CountOrZero = 1000, seed: int = 0
) -> Faithfulness:
    """Every measure of faithfulness at once, with 95 % intervals over test items.

    The intervals of both τ are Student's with the infinitesimal-jackknife standard error of `kendall`, O(n log n) in
    place of a bootstrap of rank counts; those of R² and Pearson's correlation are studentised, all others percentiles of
    `bootstrap` resamples of the items, the monotone map kept as fitted. `bootstrap=0` gives the intervals of τ alone.
    O(nc + n log n + bootstrap · n).
    Engel et al. (2023), section 3.

    Examples:
        >>> network = np.array([[0.0, 1.0], [0.0, 3.0], [0.0, -2.0], [0.0, 0.5]])
        >>> found = faithfulness(network / 2, network, [1, 1, 0, 0])
        >>> found.tau, found.tad, found.agreement, round(found.r2, 4)
        (1.0, 0.0, 1.0, 1.0)
    """
    surrogate, network = two_logits(surrogate_logits, network_logits)
    labels = labels_of(y, *surrogate.shape)
    odds, network_odds = correct_class_log_odds(surrogate, labels), correct_class_log_odds(network, labels)
    rows = np.arange(len(labels))
    p, q = (probabilities(z)[rows, labels] for z in (surrogate, network))
    rank = kendall(odds, network_odds)
    fit = monotone_r2(odds, network_odds) if np.ptp(q) > 0 else None
    per_item = np.stack(
        [
            correct(surrogate, labels),
            correct(network, labels),
            surrogate.argmax(1) == network.argmax(1),
            item_total_variation(surrogate, network),
        ],
        axis=1,
    ).astype(np.float64)
    names = ("surrogate_accuracy", "network_accuracy", "agreement", "total_variation", "tad")
    figures = dict(zip(names, _figures(per_item.mean(0, keepdims=True))[0].tolist()))
    intervals = {"tau": rank.interval("b"), "tau_literal": rank.interval("discordant")}
    vary = np.ptp(p) > 0 and np.ptp(q) > 0
    if bootstrap:
        skewed = {"pearson": of_pearson(p, q)} if vary else {}
        if fit is not None:
            skewed["r2"] = of_r2(np.square(fit.probability(odds) - q), q)
        drawn, *others = resampled_means(
            per_item, *(one.products for one in skewed.values()), resamples=bootstrap, seed=seed
        )
        for name, column in zip(names, _figures(drawn).T):
            intervals[name] = percentile_interval(column, items=len(labels))
        intervals |= {"pearson": (math.nan, math.nan), "r2": (math.nan, math.nan)}
        intervals |= {name: one.interval(means) for (name, one), means in zip(skewed.items(), others)}
    same, wrong = same_where_wrong(surrogate, network, labels)
    intervals["agreement_wrong"] = wilson_interval(same, wrong)
    return Faithfulness(
        tau=rank.tau_b,
        tau_literal=rank.literal,
        ties=rank.ties,
        pairs=rank.pairs,
        tad=figures["tad"],
        agreement=figures["agreement"],
        r2=fit.r2 if fit else math.nan,
        r2_before=fit.r2_before if fit else math.nan,
        r2_isotonic=fit.r2_isotonic if fit else math.nan,
        pearson=pearson(p, q) if vary else math.nan,
        total_variation=figures["total_variation"],
        network_accuracy=figures["network_accuracy"],
        surrogate_accuracy=figures["surrogate_accuracy"],
        items=len(labels),
        wrong=wrong,
        agreement_wrong=_defined(agreement_wrong, surrogate, network, labels),
        r2_logits=_defined(r2_logits, surrogate, network),
        intervals=intervals,
    )


def _defined(measure: Callable[..., float], *arrays: np.ndarray) -> float:
    """The measure, or NaN where it is undefined."""
    try:
        return measure(*arrays)
    except NumericalError:
        return math.nan


def _figures(means: np.ndarray) -> np.ndarray:
    """The figures that are linear in means over items, (r, 4) -> (r, 5)."""
    surrogate, network, same, distance = means.T
    return np.stack([surrogate, network, same, distance, 100 * (surrogate - network)], axis=1)

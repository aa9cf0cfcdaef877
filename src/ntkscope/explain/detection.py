"""How well a detector found what was planted: counts at a threshold, and rankings without one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from ntkscope.core import UsageError
from ntkscope.core.arguments import finite, mask_of


@dataclass(frozen=True)
class Detection:
    """Flags against the truth. `precision` is NaN when nothing was flagged, `recall` when there was nothing to find."""

    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def precision(self) -> float:
        return _share(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        return _share(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        return _share(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)

    def to_json(self) -> dict[str, float]:
        """Counts and shares together."""
        counts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **counts}


def score(flags: Any, truth: Any) -> Detection:
    """Precision, recall and F1 of `flags` where `truth` is the positive class; O(n).

    Examples:
        >>> found = score([True, True, False, False], [True, False, True, False])
        >>> found.precision, found.recall, found.f1
        (0.5, 0.5, 0.5)
    """
    actual = mask_of(truth, None, "the truth")
    flagged = mask_of(flags, len(actual), "the flags")
    return Detection(
        int((flagged & actual).sum()),
        int((flagged & ~actual).sum()),
        int((~flagged & actual).sum()),
        int((~flagged & ~actual).sum()),
    )


def auroc(scores: Any, planted: Any) -> float:
    """The probability that a planted item scores above another one, ties counting half; O(n log n).

    Examples:
        >>> auroc([0.9, 0.8, 0.1], [True, False, False])
        1.0
    """
    values, truth = _ranked(scores, planted)
    if truth.all() or not truth.any():
        raise UsageError(f"{truth.sum()} of {len(truth)} items are planted; expected some of each kind")
    return float(roc_auc_score(truth, values))


def precision_at(scores: Any, planted: Any, k: int) -> float:
    """The share of planted items among the k with the highest scores, ties by lower index; O(n log n).

    Examples:
        >>> precision_at([0.9, 0.8, 0.1], [True, False, False], 2)
        0.5
    """
    values, truth = _ranked(scores, planted)
    if not 1 <= k <= len(values):
        raise UsageError(f"got k={k} for {len(values)} items; expected 1 … {len(values)}")
    return float(truth[np.argsort(-values, kind="stable")[:k]].mean())


def _ranked(scores: Any, planted: Any) -> tuple[np.ndarray, np.ndarray]:
    values = finite(scores, "scores", 1)
    return values, mask_of(planted, len(values), "planted")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan

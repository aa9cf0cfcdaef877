"""Right and wrong by class: counts are scikit-learn's, and odd classes do not break them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as expected
from sklearn.metrics import precision_recall_fscore_support

from ntkscope.xray.sections import confusion
from xray.small import only, xrayed


def test_counts_and_shares_are_those_of_scikit_learn(tmp_path: Path) -> None:
    with only(confusion.SECTION):
        record = xrayed(tmp_path, kernels=["ck"])
    found = confusion.SECTION.read(record.metrics)
    assert found is not None
    true, predicted = (np.asarray(record.arrays[name]) for name in ("labels.test", "network.test_prediction"))
    np.testing.assert_array_equal(record.arrays["confusion.matrix"], expected(true, predicted, labels=[0, 1, 2]))
    precision, recall, _, support = precision_recall_fscore_support(
        true, predicted, labels=[0, 1, 2], zero_division=np.nan
    )
    assert [row.precision for row in found.classes] == pytest.approx(precision.tolist(), nan_ok=True)
    assert [row.recall for row in found.classes] == pytest.approx(recall.tolist())
    assert [row.test for row in found.classes] == support.tolist()
    assert found.wrong == int((true != predicted).sum()) == sum(pair.count for pair in found.confused)
    scores = np.asarray(record.arrays["problems.label_score"])
    assert sum(row.doubtful or 0 for row in found.classes) == int((scores > 0).sum())


def test_a_class_without_items_or_predictions() -> None:
    matrix = confusion.confusion_matrix(np.array([0, 0, 3]), np.array([0, 3, 3]), 5)
    assert matrix.sum() == 3
    assert matrix[0, 3] == 1
    assert matrix[4].sum() == matrix[:, 4].sum() == 0

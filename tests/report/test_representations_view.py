"""The view of representations: the contract, and sentences for every outcome."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.dataset import given
from contracts.view import ViewContract
from ntkscope.report.views.representations import sentence
from report.fixtures.xray import HOSTILE

LAYER: dict[str, Any] = {
    "name": "layer1",
    "width": 4096,
    "accuracy": {"knn": 0.8, "ncc": 0.7, "svm": 0.85},
    "components": {"knn": 20, "ncc": 9, "svm": 50},
    "variance": {"knn": 0.5, "ncc": 0.4, "svm": 0.7},
    "nc1": 2.5,
    "cdnv": 3.1,
    "differs": 0.3,
    "dimension": 12.3,
    "dimension_error": 0.4,
    "agree": False,
    "share": 0.01,
    "averaged": False,
    "reason": "",
}
LAST = {**LAYER, "name": "layer2", "agree": True, "share": 0.98, "averaged": True, "nc1": 0.0}
SILENT = {
    **LAYER,
    "name": HOSTILE[1],
    "accuracy": {},
    "components": {},
    "variance": {},
    "nc1": None,
    "cdnv": None,
    "differs": None,
    "dimension": None,
    "dimension_error": None,
    "reason": HOSTILE[0],
}
DATA: dict[str, Any] = {
    "layers": [LAYER, SILENT, LAST],
    "accuracy": 0.86,
    "collapse": "layer2",
    "before": "layer1",
    "lasting": True,
    "distribution": {"layer2": 0.97, "": 0.03},
    "train": 2000,
    "test": 1000,
    "left_out": 0,
}


class TestRepresentations(ViewContract):
    name = "representations"
    data = given(**DATA)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "From layer2 on three different classifiers"),
        ({}, "In 97 % of resampled test sets it is the same layer."),
        ({"lasting": False}, "At layer2 for the first time three different classifiers"),
        ({"lasting": False}, "no lasting collapse"),
        ({"collapse": "layer1"}, "Already at layer1, the first layer, three different classifiers"),
        ({"collapse": None}, "In 97 % of resampled test sets they do at some layer."),
    ],
)
def test_the_sentence_says_where_and_how_firmly(changes: dict[str, Any], words: str) -> None:
    assert words in sentence({**DATA, **changes})

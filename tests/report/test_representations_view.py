"""The view of representations: the contract, and sentences for every outcome."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.view import ViewContract
from ntkscope.report.views.representations import sentence
from ntkscope.xray.sections.representations import Layer, Representations
from report.fixtures.examples import example
from report.fixtures.xray import HOSTILE

MEASURED = {"nc1": 2.5, "cdnv": 3.1, "differs": 0.3, "dimension": 12.3, "dimension_error": 0.4}
PROBED = {"accuracy": {"knn": 0.8, "ncc": 0.7, "svm": 0.85}, "components": {"knn": 20, "ncc": 9, "svm": 50}}
LAYER = example(Layer, name="layer1", width=4096, share=0.01, **PROBED, **MEASURED)
LAST = {**LAYER, "name": "layer2", "agree": True, "share": 0.98, "averaged": True, "nc1": 0.0}
SILENT = example(Layer, name=HOSTILE[1], reason=HOSTILE[0])
SHARES = {"layer2": 0.97, "": 0.03}
DATA = example(Representations, layers=[LAYER, SILENT, LAST], collapse="layer2", lasting=True, distribution=SHARES)


class TestRepresentations(ViewContract):
    name = "representations"
    data = DATA


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

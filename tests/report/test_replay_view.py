"""The view of a replayed training: its sentence, its items, and what it hands to the explorer."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.dataset import given
from contracts.view import ViewContract
from ntkscope.core import Record
from ntkscope.report import VIEWS
from ntkscope.report.source import Section, Source
from ntkscope.report.views.replay import sentence
from report.browsing import Made

DATA: dict[str, Any] = {
    "items": [3, 0],
    "wrong": 1,
    "retrainings": 20,
    "kernel": {"items": [0.5, 0.7], "mean": 0.6, "low": 0.4, "high": 0.8},
    "replay": {"items": [0.1, 0.5], "mean": 0.3, "low": 0.1, "high": 0.5},
    "k": 6,
    "shared": 2.5,
    "steps": 345,
    "error": 0.1,
    "rough": False,
}


class TestReplayView(ViewContract):
    name = "replay"
    data = given(**DATA)


@pytest.mark.parametrize(("mean", "said"), [(0.9, "well"), (0.5, "in part"), (-0.1, "hardly")])
def test_the_sentence_says_how_well_in_words(mean: float, said: str) -> None:
    whole = sentence({**DATA, "kernel": {**DATA["kernel"], "mean": mean}})
    assert f"predicts {said} what training" in whole
    assert "0.40 to 0.80" in whole
    assert "A replay of the training has 0.30 (0.10 to 0.50)" in whole


def test_a_rough_training_is_said_and_shows_no_points(made: Made) -> None:
    source = Source(Record.open(made(kind="image")))
    drawn = VIEWS["replay"](Section("replay", data={**DATA, "rough": True, "error": 1.93}), source)
    assert "too rough for a replay to say which points matter" in drawn.body
    assert "193 %" in drawn.body
    assert drawn.data == {}

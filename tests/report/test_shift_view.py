"""The view of shifts: verdicts as sentences, tests in a table, both samples in a plane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contracts.dataset import given
from contracts.view import ViewContract
from ntkscope.core import Record
from ntkscope.report.source import Section, Source
from ntkscope.report.views.shift import sentence, shift
from ntkscope.xray.sections.shift import Judged, Memorisation, Seen
from report.browsing import Made
from report.fixtures.examples import example
from report.fixtures.xray import HOSTILE

P = {"c2st": 0.002, "mmd": 0.01, "ks": 0.4, "holm": 0.006}
SEEN = example(Seen, embedding="inputs", width=5, p=P, auc=0.8, auc_low=0.7, auc_high=0.9, effective=31.5)
JUDGED = example(Judged, other="test items", train=60, items=60, verdict="shift", p=0.012, seen=[SEEN])
KNOWN = example(Memorisation, train=1.0, test=0.7, gap=0.3, low=0.2, high=0.4, margin_auc=0.9, verdict="memorised")


class TestShiftView(ViewContract):
    name = "shift"
    data = given(
        judged=[
            JUDGED,
            {**JUDGED, "other": HOSTILE[0], "verdict": "too few items", "p": None, "seen": [], "why": [HOSTILE[1]]},
        ],
        memorisation=KNOWN,
        level=0.05,
        permutations=499,
    )


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (JUDGED, "The test items differ from the training items beyond chance (p = 0.01): of a training item"),
        (
            {**JUDGED, "verdict": "no shift found"},
            "No difference between the test items and the training items beyond chance",
        ),
        ({**JUDGED, "seen": [], "why": ["only 3"]}, "Nothing can be said about the test items: only 3."),
    ],
)
def test_sentences(judged: dict[str, Any], words: str) -> None:
    assert sentence(judged, 0.05).startswith(words)


def test_both_samples_are_drawn(made: Made) -> None:
    source = Source(Record.open(made(kind="image")))
    data = {"judged": [JUDGED], "memorisation": KNOWN, "level": 0.05, "permutations": 499}
    section = Section("shift", data=data)
    assert "<circle" not in shift(section, source).body
    source.array = lambda name: np.ones((120, 2)) * np.arange(120)[:, None]  # type: ignore[method-assign]
    body = shift(section, source).body
    assert body.count("<circle") == 60
    assert body.count('class="mark odd"') == 60
    assert "memorised" in body
    unclear = {**data, "memorisation": {**KNOWN, "verdict": "cannot be told from the shift"}}
    assert "two possible causes" in shift(Section("shift", data=unclear), source).body

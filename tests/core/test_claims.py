"""Claims: what they refuse, and that they survive JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ntkscope.core import Claim, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.core.records.claims import OUTCOMES, VERDICTS

GOOD = Claim("a-b", "Table 1", {"empty": 0.741}, {"empty": 0.744}, 0.01, "reproduced", "one seed")


def test_round_trip_through_json() -> None:
    assert Claim.from_json(json.loads(json.dumps(GOOD.to_json()))) == GOOD


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GOOD.verdict = "stand-in"  # type: ignore[misc]


def test_the_verdicts_are_the_four() -> None:
    assert VERDICTS == ("reproduced", "not reproduced", "stand-in", "not testable here")


@pytest.mark.parametrize(
    ("note", "outcome"),
    [
        ("the check holds; another network", "reproduced on a stand-in"),
        ("the check does not hold; another network", "not reproduced on a stand-in"),
        ("no threshold is published; reported only", "stand-in, not judged"),
        ("too small to judge: smoke scale", "stand-in, not judged"),
    ],
)
def test_a_stand_in_has_words_of_its_own(note: str, outcome: str) -> None:
    assert dataclasses.replace(GOOD, verdict="stand-in", note=note).outcome == outcome
    assert {GOOD.outcome, outcome} < set(OUTCOMES)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"verdict": "ok"}, "expected one of: reproduced"),
        ({"id": " "}, "without an id"),
        ({"measured": None}, "without a measured value"),
        ({"verdict": "not testable here"}, "leave measured=None"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        dataclasses.replace(GOOD, **change)


@pytest.mark.parametrize(
    ("value", "match"),
    [({"id": "x"}, "lacks source"), ({**GOOD.to_json(), "extra": 1}, "unknown extra")],
)
def test_json_of_another_shape_is_refused(value: dict[str, object], match: str) -> None:
    with pytest.raises(RecordError, match=match):
        Claim.from_json(value)

"""Intervals cover what they are of, and tests reject what holds, as often as they say."""

from __future__ import annotations

import pytest

from calibration.cases import CASES, Case, rejects

QUICK = 20  # data sets of the quick run: to see a p of 0 or NaN, and intervals that hardly ever cover; three where one is slow


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_as_often_as_it_says(name: str) -> None:
    one = CASES[name]
    low, high = one.bounds(one.runs)
    assert low <= one.count(range(one.runs)) / one.runs <= high


@pytest.mark.guard
@pytest.mark.parametrize(
    "name", [name for name in CASES if name != "explain.shift, auc of a shift"]
)  # its truth takes a minute
def test_roughly(name: str) -> None:
    one = CASES[name]
    runs = QUICK if one.runs >= 1000 else 12
    low, high = one.bounds(runs)
    assert low - 0.05 <= one.count(range(runs)) / runs <= high + 0.05


def test_an_interval_that_covers_too_little_and_a_p_of_zero_are_seen() -> None:
    narrow = Case("narrow", "", "interval", lambda random, seed: abs(random.normal()) < 1.5)  # 86.6 %
    low, high = narrow.bounds(1000)
    assert not low <= narrow.count(range(1000)) / 1000 <= high
    for p in (0.0, float("nan")):
        with pytest.raises(AssertionError):
            rejects(p)

"""The budget, with a clock that the test turns."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.tracking.budget import FEWEST, MARGIN, Budget, Cost, sizes


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def measured(budget: Budget, clock: Clock, cost: Cost) -> None:
    seconds = cost.fixed + cost.by_items
    clock.now += seconds
    budget.pay(cost, seconds)


def test_a_measurement_waits_until_it_is_earned() -> None:
    clock = Clock()
    budget = Budget(0.05, clock)
    measured(budget, clock, Cost(50, 0.0, 1.0))  # the first one is a debt
    assert budget.available == pytest.approx(-1.0)
    assert budget.affordable(50) is None
    clock.now += 20.0  # the debt is paid, and nothing earned beyond it
    assert budget.affordable(50) is None
    clock.now += 20 * MARGIN + 0.1
    assert budget.affordable(50) == 50
    assert budget.affordable(400) == 50  # more do not fit yet
    clock.now += 20 * MARGIN * 3
    assert budget.affordable(400) == 100


def test_the_end_is_kept_back() -> None:
    clock = Clock()
    budget = Budget(0.1, clock)
    measured(budget, clock, Cost(50, 0.0, 1.0))
    clock.now += 10 + 11 * 1.5  # one and a half measurements beyond the debt
    assert budget.affordable(50, None) == 50
    assert budget.affordable(50, ahead=100.0) == 50
    assert budget.affordable(50, ahead=1.0) is None  # then nothing would be left for the end


@pytest.mark.parametrize(
    ("each", "trained", "items"), [(0.001, 0.0, 400), (0.005, 0.0, 100), (1.0, 0.0, 50), (1.0, 1e6, 400)]
)
def test_the_end_takes_what_fits_or_about_a_second(each: float, trained: float, items: int) -> None:
    clock = Clock()
    budget = Budget(0.05, clock)
    measured(budget, clock, Cost(400, 0.0, 400 * each))
    clock.now += trained
    assert budget.at_end(400) == items


@settings(max_examples=60, deadline=None)
@given(
    share=st.floats(0.01, 0.3),
    items=st.integers(2, 500),
    fixed=st.floats(0.0, 0.5),
    each=st.floats(1e-4, 0.02),
    noise=st.lists(st.floats(0.5, 1.5), min_size=5, max_size=5),
    total=st.integers(50, 400),
)
def test_what_is_spent_stays_within_the_share(
    share: float, items: int, fixed: float, each: float, noise: list[float], total: int
) -> None:
    """After the first measurement, spending exceeds the share by no more than one prediction was wrong."""
    clock = Clock()
    budget = Budget(share, clock)
    measured(budget, clock, Cost(sizes(items)[-1], fixed, each * sizes(items)[-1]))
    first, worst = budget.spent, 0.0
    for step in range(1, total + 1):
        clock.now += 0.1
        count = budget.affordable(items, None if step == total else 0.1 * (total - step))
        if count is not None:
            assert budget.last is not None
            factor = noise[step % len(noise)]
            cost = Cost(count, fixed * factor, each * count * factor)
            worst = max(worst, cost.fixed + cost.by_items - MARGIN * budget.last.predict(count))
            measured(budget, clock, cost)
    assert budget.spent <= max(first, share * budget.trained + worst) + 1e-9
    assert budget.trained == pytest.approx(0.1 * total)


@given(items=st.integers(1, 10_000))
def test_sizes_fall_to_the_fewest(items: int) -> None:
    found = sizes(items)
    assert found[0] == items
    assert found[-1] == min(items, FEWEST)
    assert list(found) == sorted(set(found), reverse=True)
    assert all(more <= 2 * fewer + 1 for more, fewer in itertools.pairwise(found))


def test_resuming_counts_what_went_before() -> None:
    clock = Clock()
    budget = Budget(0.1, clock)
    budget.resume(50.0, 3.0)
    assert budget.seconds == pytest.approx(50.0)
    assert budget.trained == pytest.approx(47.0)
    assert budget.available == pytest.approx(1.7)

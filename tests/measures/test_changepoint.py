"""Change points: against all splits and all permutations or shifts of small series; false alarms and power."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from ntkscope.core import UsageError, numpy_generator
from ntkscope.measures import changepoint
from ntkscope.measures.changepoint import ChangePoint, change_point, common_jump


def least_squares(series: np.ndarray) -> list[float]:
    """Squares left by each split, k = 1 … n - 1."""
    return [
        float(sum(((part - part.mean()) ** 2).sum() for part in (series[:k], series[k:])))
        for k in range(1, len(series))
    ]


def window_rise(series: np.ndarray, window: int) -> tuple[int, float]:
    """First window of the largest mean rise, and that rise."""
    mean = series.mean(0)
    rises = [float(mean[t + window] - mean[t]) for t in range(len(mean) - window)]
    best = max(rises)
    return next(t for t, rise in enumerate(rises) if rise >= best - 1e-12), best


def binomial_limits(trials: int = 400, level: float = 0.05) -> tuple[float, float]:
    """The exact 99 % interval of the number of rejections at `level`."""
    low, high = binom.interval(0.99, trials, level)
    return float(low), float(high)


@pytest.mark.parametrize("seed", range(8))
def test_split_and_p_against_all_permutations(seed: int) -> None:
    random = numpy_generator(seed, "split")
    n = int(random.integers(2, 7))
    series = random.normal(size=n) + np.where(np.arange(n) >= n // 2, 1.5, 0.0)
    found = change_point(series, permutations=4000, seed=seed)
    squares = least_squares(series)
    assert found.at == int(np.argmin(squares)) + 1
    assert found.before == pytest.approx(series[: found.at].mean(), rel=1e-12)
    assert found.after == pytest.approx(series[found.at :].mean(), rel=1e-12)
    as_large = [
        min(least_squares(series[list(order)])) <= min(squares) + 1e-9 for order in itertools.permutations(range(n))
    ]
    exact = float(np.mean(as_large))
    assert abs(found.p - exact) <= 5 * math.sqrt(exact * (1 - exact) / 4000) + 1 / 4000
    for scale in (1e-300, 1e307):
        assert change_point(series * scale / 10, permutations=200, seed=seed).at == found.at


@pytest.mark.parametrize("seed", range(8))
def test_jump_and_p_against_all_shifts(seed: int) -> None:
    random = numpy_generator(seed, "jump")
    seeds, moments = int(random.integers(2, 4)), int(random.integers(4, 8))
    window = int(random.integers(1, moments - 1))
    steps = random.normal(1.0, 1.0, size=(seeds, moments - 1))
    steps[:, moments // 2] += 3
    series = np.concatenate([np.zeros((seeds, 1)), steps.cumsum(1)], axis=1)
    found = common_jump(series, window=window, permutations=4000, seed=seed)
    at, rise = window_rise(series, window)
    assert found.at == at
    assert found.share == pytest.approx(rise / (series[:, -1] - series[:, 0]).mean(), rel=1e-9)
    as_large = []
    for shifts in itertools.product(range(moments - 1), repeat=seeds):
        turned = np.stack([np.roll(row, shift) for row, shift in zip(steps, shifts, strict=True)])
        again = np.concatenate([np.zeros((seeds, 1)), turned.cumsum(1)], axis=1)
        as_large.append(window_rise(again, window)[1] >= rise - 1e-9)
    exact = float(np.mean(as_large))
    assert abs(found.p - exact) <= 5 * math.sqrt(exact * (1 - exact) / 4000) + 1 / 4000
    if found.share > 0:
        huge = common_jump(series * 1e300, window=window, permutations=50, seed=seed)
        assert huge.at == found.at
        assert huge.share == pytest.approx(found.share, rel=1e-9)


def test_blocks_change_nothing_but_the_order_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    series = numpy_generator(0, "blocks").normal(size=(3, 30)).cumsum(1)
    whole = change_point(series[0], permutations=99), common_jump(series, window=4, permutations=99)
    assert whole == (change_point(series[0], permutations=99), common_jump(series, window=4, permutations=99))
    monkeypatch.setattr(changepoint, "BLOCK", 64)
    pieces = change_point(series[0], permutations=99), common_jump(series, window=4, permutations=99)
    assert (pieces[0].at, pieces[1].at, pieces[1].share) == (whole[0].at, whole[1].at, whole[1].share)
    assert 0 < pieces[0].p <= 1


def test_constant_series() -> None:
    assert change_point([0.1] * 9) == ChangePoint(None, 0.1, 0.1, 1.0)
    flat = common_jump(np.full((3, 9), 0.1), window=2)
    assert math.isnan(flat.share)
    assert flat.p == 1.0
    assert flat.reason == "the mean over seeds does not rise at all: the series are constant"


def test_steady_series_have_no_common_jump() -> None:
    """Equal steps: every shift is the observation, up to rounding, which must not decide."""
    steady = common_jump(np.arange(50) * np.array([[0.1], [0.3], [0.7]]), window=7, permutations=999)
    assert steady.p == 1.0
    assert steady.share == pytest.approx(7 / 49)
    assert steady.reason is None


def test_a_fall_has_no_share_of_a_rise() -> None:
    fall = common_jump(-np.arange(40.0) * np.ones((4, 1)), window=3, permutations=99)
    assert math.isnan(fall.share)
    assert fall.reason == "the mean over seeds does not rise"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: change_point([1.0]), UsageError, "series of 1 values"),
        (lambda: common_jump(np.zeros((1, 9)), window=2), UsageError, "got 1 series"),
        (
            lambda: common_jump(np.zeros((3, 9)), window=0),
            UsageError,
            "window=0 for 9 moments; expected .* from 1 to 7",
        ),
        (lambda: common_jump(np.zeros((3, 9)), window=8), UsageError, "window=8"),
    ],
)
def test_refusals(call: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.guard
@pytest.mark.parametrize("place", [20, 50, 75])
def test_a_step_of_three_deviations_is_located(place: int) -> None:
    random = numpy_generator(0, "step", place)
    near = significant = 0
    for k in range(400):
        found = change_point(random.normal(size=100) + 3 * (np.arange(100) >= place), permutations=199, seed=k)
        near += found.at is not None and abs(found.at - place) <= 2
        significant += found.p <= 0.05
    assert near >= 0.95 * 400
    assert significant >= 0.99 * 400


@pytest.mark.guard
def test_jumps_of_each_seed_at_its_own_moment_are_not_common() -> None:
    """A third of each seed's rise in one step, at an independent moment: the null, however sharp the jumps."""
    random = numpy_generator(0, "own jumps")
    rejected = 0
    for k in range(400):
        steps = random.normal(1, 1, size=(10, 200))
        steps[np.arange(10), random.integers(0, 200, 10)] += 100
        rejected += common_jump(steps.cumsum(1), window=10, permutations=499, seed=k).p <= 0.05
    low, high = binomial_limits()
    assert low <= rejected <= high


@pytest.mark.guard
def test_a_common_jump_of_a_third_of_the_rise_is_found() -> None:
    """Rise 300, of it 100 within ten steps that all seeds share, in steps that vary as much as they rise."""
    random = numpy_generator(0, "common")
    found = located = 0
    for k in range(400):
        steps = random.normal(1, 1, size=(10, 200))
        place = int(random.integers(0, 190))
        steps[:, place : place + 10] += 10
        jump = common_jump(steps.cumsum(1), window=10, permutations=199, seed=k)
        found += jump.p <= 0.05
        located += abs(jump.at - (place - 1)) <= 2  # step t leads from moment t - 1 to t of the sums
    assert found >= 0.95 * 400
    assert located >= 0.95 * 400


def test_a_step_of_one_unit_in_the_last_place_is_found_where_it_is() -> None:
    assert change_point([1e16] * 5 + [1e16 + 2] * 5, permutations=99).at == 5

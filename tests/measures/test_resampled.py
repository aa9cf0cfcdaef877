"""The corrected resampled t-test: its formula, its calibration where the plain one fails, what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ntkscope.core import NtkscopeError
from ntkscope.measures.resampled import corrected_t_test


@pytest.mark.parametrize("n", [2, 10, 50])
def test_it_is_students_with_a_wider_error(n: int) -> None:
    values = np.random.default_rng(n).normal(0.01, 0.05, n)
    found = corrected_t_test(values, train=300, test=59)
    plain = stats.ttest_1samp(values, 0.0)
    factor = math.sqrt((1 / n + 59 / 300) / (1 / n))
    assert found.t == pytest.approx(plain.statistic / factor, rel=1e-12)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(plain.statistic / factor), n - 1), rel=1e-12)
    assert found.sem == pytest.approx(stats.sem(values), rel=1e-12)
    assert (found.low <= 0 <= found.high) == (found.p >= 0.05)
    assert corrected_t_test(-values, train=300, test=59).p == pytest.approx(found.p, rel=1e-12)


def test_more_splits_of_the_same_data_do_not_make_any_difference_significant() -> None:
    """Its error has a floor, sqrt(test/train) of the spread; the plain standard error has none."""
    values = np.tile([0.0, 0.02], 5000)
    found = corrected_t_test(values, train=300, test=59)
    assert found.sem < 2e-4
    assert found.p > 0.02


@pytest.mark.guard
def test_two_methods_that_are_equal_are_told_apart_no_more_often_than_said() -> None:
    """Nearest means on two independent, equally good sets of features; 30 splits of 150 items, 400 data sets. The plain t-test
    rejects far too often; the corrected one is inside the exact 99 % interval around 5 %, or below it."""
    random = np.random.default_rng(0)
    n, train, splits, worlds = 150, 125, 30, 400
    plain = corrected = 0
    for _ in range(worlds):
        y = np.arange(n) % 2
        views = [random.normal(size=(n, 4)) + 0.35 * (2 * y[:, None] - 1) for _ in range(2)]
        differences = []
        for _ in range(splits):
            order = random.permutation(n)
            a, b = order[:train], order[train:]
            scores = []
            for x in views:
                means = np.stack([x[a][y[a] == k].mean(0) for k in (0, 1)])
                near = ((x[b][:, None] - means) ** 2).sum(2).argmin(1)
                scores.append((near == y[b]).mean())
            differences.append(scores[0] - scores[1])
        plain += stats.ttest_1samp(differences, 0.0).pvalue < 0.05
        corrected += corrected_t_test(differences, train=train, test=n - train).p < 0.05
    assert corrected <= stats.binom.ppf(0.995, worlds, 0.05)
    assert plain > 0.2 * worlds


def test_equal_differences() -> None:
    assert corrected_t_test([0.0, 0.0], train=2, test=1).p == 1.0
    same = corrected_t_test([0.1, 0.1, 0.1], train=2, test=1)
    assert math.isnan(same.p)
    assert (same.low, same.high) == (same.mean, same.mean)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([0.1], {}, "at least two splits"),
        ([0.1, 0.2], {"train": 0}, "train=0; expected a finite number ≥ 1"),
    ],
)
def test_what_cannot_be_is_refused(values: list[float], options: dict[str, float], message: str) -> None:
    with pytest.raises(NtkscopeError, match=message):
        corrected_t_test(values, **{"train": 2, "test": 1, **options})

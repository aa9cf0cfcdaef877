"""Intervals of shares: Wilson's against the published tables and against its definition; what n a printed interval implies."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from ntkscope.core import UsageError
from ntkscope.measures.uncertainty import normal_quantile, percentile_interval, wald_trials, wilson, wilson_interval

# Balakrishnan (2023), Table 2: matching points of 500, as printed (centre, half-width). Ledger relu-t2-ci-wilson.
TABLE_2 = {
    66: ("0.1348", "0.02969"),
    471: ("0.9386", "0.02069"),
    16: ("0.03557", "0.01578"),
    399: ("0.7957", "0.03513"),
    495: ("0.9863", "0.009457"),
    440: ("0.8771", "0.02852"),
    15: ("0.03358", "0.01532"),
    488: ("0.9724", "0.01385"),
}
NINE = (66, 471, 16, 399, 495, 440, 15, 488, 495)  # in the order of the table; 495 is printed twice

# Table 1: the accuracies that have an interval. Ledger relu-t1-ci-implied-n.
EMPTY = {
    "1-NN": (0.741, 0.00384), "1-NTK": (0.705, 0.003997), "2-NN": (0.558, 0.004353), "2-NTK": (0.54, 0.004368),
    "3-NN": (0.829, 0.0033), "3-NTK": (0.702, 0.004009), "4-NTK": (0.498, 0.004382),
}  # fmt: skip
REMAINING = {
    "1-NN": (0.9333, 0.002186), "1-NTK": (0.8757, 0.002891), "2-NN": (0.8874, 0.002771), "2-NTK": (0.8514, 0.003118),
    "3-NN": (0.9773, 0.001304), "3-NTK": (0.73, 0.003891), "4-NN": (0.8951, 0.002685), "4-NTK": (0.8487, 0.00314),
    "5-NN": (0.9923, 0.0007651), "5-NTK": (0.815, 0.003403),
}  # fmt: skip


def printed(number: float) -> str:
    """Four significant digits, as the tables are printed."""
    return f"{number:.{3 - math.floor(math.log10(number))}f}"


@pytest.mark.parametrize("successes", NINE)
def test_the_nine_entries_of_table_2(successes: int) -> None:
    assert tuple(map(printed, wilson(successes, 500))) == TABLE_2[successes]


@pytest.mark.parametrize("successes", NINE)
def test_no_other_count_gives_an_entry_of_table_2(successes: int) -> None:
    """The test above can fail: of all 501 counts only the recovered one reproduces both printed numbers."""
    found = [k for k in range(501) if tuple(map(printed, wilson(k, 500))) == TABLE_2[successes]]
    assert found == [successes]


def test_entries_without_error_break_table_2s_rule() -> None:
    """Printed as 0 ± 0 and 1 ± 0; the rule of the other entries gives 0.0038 ± 0.0038 and 0.9962 ± 0.0038."""
    assert wilson(0, 500) == pytest.approx((0.0038, 0.0038), abs=5e-5)
    assert wilson(500, 500) == pytest.approx((0.9962, 0.0038), abs=5e-5)


@pytest.mark.parametrize(("share", "half"), [*EMPTY.values(), *REMAINING.values()])
def test_table_1s_intervals_imply_50_000_points(share: float, half: float) -> None:
    """Both columns, where the set-up has 200 and 25,400 points, five runs 1,000 and 127,000 (an erratum)."""
    assert wald_trials(share, half) == pytest.approx(50_000, rel=0.003)


def test_table_1_has_17_intervals_and_what_they_should_have_been() -> None:
    assert len(EMPTY) + len(REMAINING) == 17
    z = normal_quantile(0.95)
    for share, half, n in ((0.741, 0.0272, 1000), (0.829, 0.0233, 1000), (0.9333, 0.0014, 127_000)):
        assert z * math.sqrt(share * (1 - share) / n) == pytest.approx(half, abs=5e-5)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 2, 7, 500, 10**9])
def test_ends_solve_the_score_equation(n: int, level: float) -> None:
    """Wilson's ends are the shares q whose test would just reject: |p - q| = z sqrt(q (1 - q) / n)."""
    z = normal_quantile(level)
    for successes in {0, 1, n // 3, n}:
        centre, half = wilson(successes, n, level)
        p = successes / n
        for q in (centre - half, centre + half):
            # squared, q (1 - q) enters linearly: rounding of q at 0 or 1 is not magnified by a root
            assert (p - q) ** 2 == pytest.approx(z * z * q * (1 - q) / n, rel=1e-6, abs=1e-15)
        assert (centre - half, centre + half) == pytest.approx(wilson_interval(successes, n, z), rel=1e-9, abs=1e-12)


def test_no_trials_tell_nothing() -> None:
    assert wilson(0, 0) == (0.5, 0.5)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-14, 1.0, 1e14, 1e307])
@pytest.mark.parametrize("level", [0.5, 0.68, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 2, 7, 101])
def test_percentiles(scale: float, level: float, n: int) -> None:
    """Against fractions: the place of the percentile and the line between its neighbours are exact."""
    values = np.random.default_rng(n).normal(size=n) * scale
    ordered = [Fraction(v) for v in sorted(values.tolist())]
    tail = (1 - Fraction(str(level))) / 2
    for found, share in zip(percentile_interval(values, level), (tail, 1 - tail)):
        place = share * (n - 1)
        low, high = ordered[int(place)], ordered[min(int(place) + 1, n - 1)]
        exact = low + (high - low) * (place - int(place))
        largest = max(abs(low), abs(high))
        assert abs(Fraction(found) - exact) <= 4 * Fraction(np.finfo(float).eps) * largest


def test_no_values_have_no_percentiles() -> None:
    with pytest.raises(UsageError, match="no values"):
        percentile_interval([])

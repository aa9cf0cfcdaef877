"""Measures at any scale: percentiles neither rounded nor overflowing, integers compared as integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from ntkscope.core import UsageError
from ntkscope.measures.kendall import kendall, kendall_tau
from ntkscope.measures.uncertainty import percentile_interval


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


@pytest.mark.parametrize("base", [0, 2**53, 2**60, 2**63 - 100, -(2**63), 2**80])
@pytest.mark.parametrize("seed", range(4))
def test_integers_are_integers(base: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    small, other = random.integers(0, 40, 30).tolist(), random.normal(size=30)
    large = [base + v for v in small]
    expected = kendalltau(small, other).statistic
    assert kendall_tau(large, other) == pytest.approx(expected, abs=1e-12)
    assert kendall_tau(other, large) == pytest.approx(expected, abs=1e-12)
    if -(2**63) <= base < 2**63 - 40:
        assert (
            kendall_tau(np.array(large), other) == kendall_tau(torch.tensor(large), other) == kendall_tau(large, other)
        )


def test_signs_mixed_beyond_64_bits() -> None:
    assert kendall([2**63, 2**63 + 1, -1], [1, 2, 0]).tau_b == 1.0
    assert kendall(np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64), [1, 0]).tau_b == 1.0

"""Kendall's coefficient: equal to brute force, its laws, its standard errors against the bootstrap."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.measures.kendall import below_in_both, kendall, kendall_tau


def brute(a: np.ndarray, b: np.ndarray) -> tuple[int, int, int, float]:
    """Concordant, discordant and tied pairs, and the standard errors' raw material, pair by pair."""
    concordant = discordant = tied = tied_a = tied_b = 0
    for i in range(len(a)):
        for j in range(i):
            order = np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
            concordant += order > 0
            discordant += order < 0
            tied += order == 0
            tied_a += a[i] == a[j]
            tied_b += b[i] == b[j]
    pairs = len(a) * (len(a) - 1) // 2
    untied = (pairs - tied_a) * (pairs - tied_b)
    return concordant, discordant, tied, (concordant - discordant) / math.sqrt(untied) if untied else math.nan


scores = st.integers(2, 25).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(-3, 3), min_size=n, max_size=n) for _ in range(2)])
)


@settings(max_examples=120)
@given(both=scores)
def test_equals_brute_force_with_ties(both: tuple[list[int], list[int]]) -> None:
    a, b = (np.array(x, dtype=float) for x in both)
    concordant, discordant, tied, tau = brute(a, b)
    found = kendall(a, b)
    assert (found.concordant, found.discordant, found.ties) == (concordant, discordant, tied)
    assert found.pairs == concordant + discordant + tied
    literal = (concordant - discordant - tied) / found.pairs
    assert kendall_tau(a, b, ties="discordant") == pytest.approx(literal, abs=1e-14)
    if math.isnan(tau):
        with pytest.raises(NumericalError, match="constant"):
            kendall_tau(a, b)
    else:
        assert kendall_tau(a, b) == pytest.approx(tau, abs=1e-14)
        assert kendall_tau(a, b) == pytest.approx(kendalltau(a, b).statistic, abs=1e-12)


@settings(max_examples=100)
@given(both=scores)
def test_counts_below_equal_brute_force(both: tuple[list[int], list[int]]) -> None:
    x, y = (np.array(v, dtype=np.int64) for v in both)
    expected = [int(((x < x[i]) & (y < y[i])).sum()) for i in range(len(x))]
    assert below_in_both(x, y).tolist() == expected


@given(seed=st.integers(0, 10_000), n=st.integers(2, 60))
def test_laws(seed: int, n: int) -> None:
    random = numpy_generator(seed, "test")
    a, b = random.normal(size=n), random.normal(size=n)
    tau = kendall_tau(a, b)
    assert -1 <= tau <= 1
    assert kendall_tau(b, a) == pytest.approx(tau, abs=1e-14)
    assert kendall_tau(a, -b) == pytest.approx(-tau, abs=1e-14)
    assert kendall_tau(np.exp(a), b**3) == pytest.approx(tau, abs=1e-14)
    assert kendall_tau(a, b, ties="discordant") == pytest.approx(tau, abs=1e-14)  # no ties, one answer
    assert kendall_tau(a, np.exp(a)) == 1
    assert kendall_tau(a, -np.exp(a)) == -1
    shuffled = random.permutation(n)
    assert kendall_tau(a[shuffled], b[shuffled]) == pytest.approx(tau, abs=1e-14)


def test_clipped_gaussians_show_what_ties_do() -> None:
    """Pairs of correlation 0.957 (τ 0.81), 30 % of each clipped at the top: the literal rule falls, τ-b stays."""
    random = numpy_generator(0, "test", "clipped")
    a = random.normal(size=2000)
    b = 0.957 * a + math.sqrt(1 - 0.957**2) * random.normal(size=2000)
    clipped = [np.minimum(x, np.quantile(x, 0.7)) for x in (a, b)]
    before, after = kendall(a, b), kendall(*clipped)
    assert before.tau_b == before.literal == pytest.approx(0.81, abs=0.03)
    assert after.literal < before.literal - 0.12
    assert abs(after.tau_b - before.tau_b) < 0.03
    assert after.ties > 0.08 * after.pairs
    assert kendall_tau(clipped[0], clipped[0], ties="discordant") < 1


@pytest.mark.parametrize("tied", [False, True])
def test_standard_errors_are_those_of_the_bootstrap(tied: bool) -> None:
    """400 resamples give a standard deviation to 3.5 % (one standard error); 15 % is four of them and a little."""
    random = numpy_generator(1, "test", "bootstrap")
    n = 300
    a = random.normal(size=n)
    b = 0.7 * a + random.normal(size=n)
    if tied:
        a, b = np.round(a), np.round(2 * b)
    found = kendall(a, b)
    drawn = []
    for _ in range(400):
        index = random.integers(0, n, n)
        once = kendall(a[index], b[index])
        # a resample pairs an item with itself, which ties; the literal rule over pairs of different items
        same = (np.bincount(index) * (np.bincount(index) - 1) // 2).sum()
        drawn.append((once.tau_b, 2 * once.concordant / (once.pairs - same) - 1))
    deviation = np.std(drawn, axis=0)
    assert found.tau_b_error == pytest.approx(deviation[0], rel=0.15)
    assert found.literal_error == pytest.approx(deviation[1], rel=0.15)
    low, high = found.interval()
    quantiles = np.quantile([t for t, _ in drawn], [0.025, 0.975])
    assert [low, high] == pytest.approx(list(quantiles), abs=0.02)


def test_intervals_of_few_and_of_an_unknown_kind() -> None:
    assert kendall([1, 2], [1, 2]).interval() == (-1.0, 1.0)
    with pytest.raises(UsageError, match="got ties='B'"):
        kendall([1, 2, 3], [1, 3, 2]).interval("B")


def test_grows_no_faster_than_n_log_n() -> None:
    """From 8,000 to 64,000 items: 8 times the items, 9.8 times n log n; a quadratic count would take 64 times."""
    random = numpy_generator(3, "test", "time")

    def seconds(n: int) -> float:
        a, b = random.normal(size=n), random.normal(size=n)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            kendall(a, b)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(64_000) < 32 * seconds(8_000)


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

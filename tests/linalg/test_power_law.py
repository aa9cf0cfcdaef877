"""Power-law tails against the formulas written out, quadrature, and samples whose law is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.linalg import power_law_tail
from ntkscope.linalg.spectra.power_law import CANDIDATES, best_threshold
from ntkscope.linalg.spectra.tail_rivals import log_normal, log_normaliser, truncated


def pareto(n: int, alpha: float, seed: int = 0) -> np.ndarray:
    return (1 - numpy_generator(seed, "pareto").random(n)) ** (-1 / (alpha - 1))


def naive(x: np.ndarray, least: int) -> tuple[float, float, float]:
    """Every threshold, one after another, distances by scipy's test."""
    best = (math.nan, math.nan, math.inf)
    for x_min in np.unique(x):
        tail = x[x >= x_min]
        if len(tail) < least or x_min == x.max():
            continue
        alpha = 1 + len(tail) / np.log(tail / x_min).sum()
        distance = stats.kstest(tail, lambda v, a=alpha, m=x_min: 1 - (v / m) ** (1 - a)).statistic
        if distance < best[2]:
            best = (alpha, x_min, distance)
    return best


@pytest.mark.parametrize("seed", range(3))
def test_against_the_naive_way(seed: int) -> None:
    x = np.concatenate([pareto(80, 2.2, seed), numpy_generator(seed, "body").random(60)]).round(2) + 0.01  # with ties
    assert len(x) <= CANDIDATES
    alpha, x_min, distance = naive(x, 30)
    found = power_law_tail(torch.from_numpy(x), least=30, resamples=0)
    assert (found.alpha, found.x_min, found.distance) == pytest.approx((alpha, x_min, distance), rel=1e-9)
    assert found.points == int((x >= x_min).sum())
    assert math.isnan(found.p_value)


def test_a_power_law_is_recognised() -> None:
    x = pareto(600, 2.5)
    found = power_law_tail(x, resamples=40)
    assert found.interval[0] < 2.5 < found.interval[1]
    assert found.p_value > 0.1
    assert found.against["exponential"].ratio > 2
    assert found.against["exponential"].p < 0.01
    assert -2 < found.against["log-normal"].ratio <= 0
    assert found.against["truncated"].p > 0.01
    again = power_law_tail(x, resamples=40)
    assert (again.p_value, again.interval) == (found.p_value, found.interval)


def test_what_is_none_is_told() -> None:
    x = 1 + numpy_generator(0, "exponential").exponential(size=1500)
    found = power_law_tail(x, least=1400, resamples=30)
    assert found.p_value < 0.1
    assert found.against["exponential"].ratio < -2
    assert found.against["truncated"].p < 1e-3


@pytest.mark.parametrize("n", [20, 33, 100, 390, 3000])
@pytest.mark.parametrize("body", ["pareto", "log-normal", "uniform", "ties"])
def test_thresholds_ruled_out_are_not_the_best(n: int, body: str) -> None:
    """The same threshold, exponent and distance as from every distance in full."""
    random = numpy_generator(n, "thresholds", body)
    x = {
        "pareto": lambda: pareto(n, 2.5, n),
        "log-normal": lambda: np.exp(random.normal(size=n)),
        "uniform": lambda: 1 + random.random(n),
        "ties": lambda: random.integers(1, 40, n).astype(float),
    }[body]()
    x = np.sort(x)
    firsts = np.flatnonzero(np.concatenate([[True], x[1:] > x[:-1]]))
    firsts = firsts[(n - firsts >= 10) & (x[firsts] < x[-1])]
    if len(firsts) > CANDIDATES:
        firsts = firsts[np.linspace(0, len(firsts) - 1, CANDIDATES).round().astype(int)]
    distances = []
    for first in firsts:
        tail = np.log(x[first:] / x[first])
        law, steps = -np.expm1(-len(tail) / tail.sum() * tail), np.arange(len(tail)) / len(tail)
        distances.append(max((law - steps).max(), (steps - law).max() + 1 / len(tail)))
    alpha, start, distance = best_threshold(x, 10)
    best = int(np.argmin(distances))
    assert distance == pytest.approx(distances[best], rel=1e-9)
    assert distances[firsts.tolist().index(start)] == pytest.approx(distances[best], rel=1e-9)
    assert alpha == pytest.approx(1 + (n - start) / np.log(x[start:] / x[start]).sum())


@pytest.mark.parametrize(("exponent", "rate"), [(2.5, 0.1), (0.5, 1e-3), (-3.0, 0.7), (1.0, 30.0), (4.0, 1e-10)])
def test_the_normaliser_is_the_integral(exponent: float, rate: float) -> None:
    exact = integrate.quad(lambda y: math.exp((1 - exponent) * y - rate * math.exp(y)), 0, 60, limit=500, epsabs=0)[0]
    assert log_normaliser(exponent, rate) == pytest.approx(math.log(exact), abs=1e-7)


def test_rivals_are_at_their_maximum() -> None:
    """Known parameters give no higher likelihood than those fitted, and the truncated law contains the power law."""
    logs = np.abs(numpy_generator(1, "log-normal").normal(size=400))
    x = np.exp(logs)
    known = (-np.log(x) - logs**2 / 2 - math.log(math.sqrt(2 * math.pi) / 2)).sum()
    assert known <= log_normal(x, 2.0).sum() <= known + 10
    y = pareto(400, 2.5)
    plain = (math.log(1.5) - 2.5 * np.log(y)).sum()
    assert truncated(y, 2.5).sum() >= plain


@pytest.mark.parametrize(
    ("values", "options", "error", "match"),
    [
        ([1.0] * 100, {}, NumericalError, "differ"),
        (np.arange(1.0, 40.0), {}, UsageError, "39 positive values"),
        (np.arange(-5.0, 95.0), {}, UsageError, "negative"),
        ([], {}, UsageError, "0 positive values"),
    ],
)
def test_refuses(values: object, options: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        power_law_tail(values, **options)

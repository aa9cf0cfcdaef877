"""Faithfulness: the figures against their definitions, the map that keeps order, the intervals against brute force."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.core import NumericalError, numpy_generator
from ntkscope.measures._studentised import of_pearson
from ntkscope.measures.faithfulness import (
    accuracy,
    agreement,
    correct_class_log_odds,
    faithfulness,
    kendall_tau,
    monotone_r2,
    pearson,
    standard_error,
    summarise,
    tad,
    total_variation,
)


def two_models(
    n: int = 400, c: int = 5, noise: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = numpy_generator(seed, "test", "models")
    y = random.integers(0, c, n)
    network = random.normal(size=(n, c)) + 2 * np.eye(c)[y]
    return 0.5 * network + noise * random.normal(size=(n, c)), network, y


class TestLogOdds:
    @settings(max_examples=50)
    @given(z=st.lists(st.floats(-700, 700), min_size=2, max_size=6), seed=st.integers(0, 100))
    def test_equals_the_definition_in_many_digits(self, z: list[float], seed: int) -> None:
        y = seed % len(z)
        with mpmath.workdps(700):
            p = mpmath.exp(z[y]) / sum(mpmath.exp(v) for v in z)
            expected = float(mpmath.log(p) - mpmath.log(1 - p))
        assert correct_class_log_odds([z], [y])[0] == pytest.approx(expected, rel=1e-12, abs=1e-12)

    def test_does_not_saturate(self) -> None:
        z = np.stack([np.zeros(5), 40.0 + np.arange(5)], axis=1)
        assert len(set(correct_class_log_odds(z, np.ones(5, dtype=int)))) == 5


class TestPredictions:
    def test_equal_accuracy_says_nothing_about_agreement(self) -> None:
        a = np.array([[1.0, 0.0], [0.0, 1.0]])
        assert tad(a, a[::-1], [0, 0]) == 0
        assert agreement(a, a[::-1]) == 0

    def test_laws(self) -> None:
        surrogate, network, y = two_models()
        assert tad(surrogate, network, y) == pytest.approx(100 * (accuracy(surrogate, y) - accuracy(network, y)))
        assert tad(surrogate, network, y) == pytest.approx(-tad(network, surrogate, y))
        assert agreement(surrogate, surrogate + 3) == 1
        assert total_variation(network, network + 7.5) == pytest.approx(0, abs=1e-14)
        assert 0 < total_variation(surrogate, network) < 1
        assert total_variation([[500.0, 0.0]], [[0.0, 500.0]]) == 1
        assert pearson(surrogate[:, 0], network[:, 0]) == pytest.approx(
            np.corrcoef(surrogate[:, 0], network[:, 0])[0, 1], abs=1e-12
        )


class TestMonotoneMap:
    @settings(max_examples=25)
    @given(noise=st.floats(0, 3), scale=st.floats(0.05, 20), shift=st.floats(-3, 3), seed=st.integers(0, 1000))
    def test_never_worse_than_no_map_and_keeps_order(self, noise: float, scale: float, shift: float, seed: int) -> None:
        random = numpy_generator(seed, "test", "map")
        network = 3 * random.normal(size=120)
        surrogate = (network - shift) / scale + noise * random.normal(size=120)
        fit = monotone_r2(surrogate, network)
        assert fit.r2 >= fit.r2_before - 1e-12
        assert fit.r2_isotonic >= fit.r2 - 1e-9  # isotonic regression is solved to rounding
        assert fit.slope > 0
        tau = kendall_tau(surrogate, network)
        assert kendall_tau(fit.log_odds(surrogate), network) == pytest.approx(tau, abs=1e-12)

    def test_finds_the_map_it_was_made_with(self) -> None:
        z = np.linspace(-4, 4, 200)
        for slope, intercept in ((0.2, 1.0), (5.0, -2.0), (1.0, 0.0)):
            fit = monotone_r2(z, slope * z + intercept)
            assert fit.slope == pytest.approx(slope, rel=1e-4)
            assert fit.intercept == pytest.approx(intercept, abs=1e-4)
            assert fit.r2 == pytest.approx(1, abs=1e-9)

    def test_no_other_slope_does_better(self) -> None:
        surrogate, network, y = two_models(noise=1.0)
        z, target = correct_class_log_odds(surrogate, y), correct_class_log_odds(network, y)
        fit = monotone_r2(z, target)
        p = 1 / (1 + np.exp(-target))
        for slope in np.geomspace(0.05, 10, 40):
            for intercept in np.linspace(-4, 4, 33):
                q = 1 / (1 + np.exp(-slope * z - intercept))
                assert 1 - np.square(q - p).sum() / np.square(p - p.mean()).sum() <= fit.r2 + 1e-9

    def test_a_reversed_surrogate_explains_nothing(self) -> None:
        z = np.linspace(-3, 3, 50)
        assert monotone_r2(z, -z).r2 == pytest.approx(0, abs=1e-3)

    def test_a_constant_network_is_refused(self) -> None:
        with pytest.raises(NumericalError, match="R² is undefined"):
            monotone_r2([1.0, 2.0], [3.0, 3.0])


class TestFaithfulness:
    def test_figures_are_those_of_the_single_measures(self) -> None:
        surrogate, network, y = two_models()
        found = faithfulness(torch.from_numpy(surrogate), network, y, bootstrap=50)
        odds = correct_class_log_odds(surrogate, y), correct_class_log_odds(network, y)
        p, q = (1 / (1 + np.exp(-z)) for z in odds)
        assert found.tau == kendall_tau(*odds)
        assert found.tau_literal == kendall_tau(*odds, ties="discordant")
        assert found.tad == pytest.approx(tad(surrogate, network, y))
        assert found.agreement == pytest.approx(agreement(surrogate, network))
        assert found.total_variation == pytest.approx(total_variation(surrogate, network))
        assert found.pearson == pytest.approx(pearson(p, q), abs=1e-12)
        assert found.r2 == monotone_r2(*odds).r2
        assert found.network_accuracy == pytest.approx(accuracy(network, y))
        for name, (low, high) in found.intervals.items():
            assert low <= getattr(found, name) <= high, name
        assert json.loads(json.dumps(found.to_json()))["tau"] == found.tau

    def test_the_surrogate_itself_is_perfect(self) -> None:
        _, network, y = two_models()
        found = faithfulness(network, network, y, bootstrap=20)
        assert (found.tau, found.tad, found.agreement, found.total_variation) == (1, 0, 1, 0)
        assert found.r2 == pytest.approx(1, abs=1e-12)
        assert found.intervals["tau"] == (1, 1)

    def test_bootstrap_is_the_one_anybody_would_write(self) -> None:
        """600 resamples each, by counts and by indexing: ends of the intervals within a tenth of their width times 3."""
        surrogate, network, y = two_models(n=200)
        found = faithfulness(surrogate, network, y, bootstrap=600)
        random = numpy_generator(5, "test", "brute bootstrap")
        drawn = []
        for _ in range(600):
            index = random.integers(0, len(y), len(y))
            s, t, labels = surrogate[index], network[index], y[index]
            p, q = (1 / (1 + np.exp(-correct_class_log_odds(z, labels))) for z in (s, t))
            drawn.append((tad(s, t, labels), agreement(s, t), total_variation(s, t), np.corrcoef(p, q)[0, 1]))
        for name, column in zip(("tad", "agreement", "total_variation", "pearson"), np.array(drawn).T):
            low, high = np.quantile(column, [0.025, 0.975])
            assert list(found.intervals[name]) == pytest.approx([low, high], abs=0.3 * (high - low)), name

    @pytest.mark.parametrize("noise", [1.0, 1e-4, 1e-9])
    def test_the_interval_of_the_negative_is_the_mirrored_one(self, noise: float) -> None:
        """Also where all but nothing is left of either variable beside the other; in Fisher's z, which tells such apart."""
        random = numpy_generator(6, "test", "mirrored")
        a, e = random.normal(size=(2, 200))
        ends = []
        for sign in (1.0, -1.0):
            found = replace(of_pearson(a, sign * (a + noise * e)), figure=float)
            rows = numpy_generator(7, "test", "mirrored").integers(0, 200, (300, 200))
            ends.append(found.interval(found.products[rows].mean(1)))
        (low, high), (low_mirrored, high_mirrored) = ends
        assert math.isfinite(low)
        assert (low_mirrored, high_mirrored) == pytest.approx((-high, -low), rel=1e-6)

    def test_undefined_figures_are_nan_not_errors(self) -> None:
        found = faithfulness(np.zeros((4, 2)), [[0.0, 1.0]] * 4, [0, 0, 1, 1], bootstrap=10)
        assert math.isnan(found.tau)
        assert math.isnan(found.pearson)
        assert found.agreement == 0


def test_summaries() -> None:
    assert standard_error([2.0, 4.0, 9.0]) == pytest.approx(np.std([2, 4, 9], ddof=1) / math.sqrt(3))
    assert math.isnan(standard_error([1.0]))
    found = summarise([{"tau": 0.5, "ok": True}, {"tau": math.nan, "tad": 1}, {"tau": 0.7}])
    assert found["tau"].mean == pytest.approx(0.6)
    assert found["tau"].n == 2
    assert set(found) == {"tau", "tad"}
    assert math.isnan(found["tad"].sem)

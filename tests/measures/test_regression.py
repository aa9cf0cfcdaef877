"""Figures of real outputs against scikit-learn, by hand, and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import kendalltau
from sklearn.metrics import r2_score

from ntkscope.core import NumericalError, numpy_generator
from ntkscope.measures.regression import output_fidelity, r2_outputs, r_squared, rmse


def pair(n: int = 40, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = numpy_generator(seed, "outputs")
    network = draw.standard_normal((n, d)) * 10.0 ** np.arange(d)
    return network + 0.3 * draw.standard_normal((n, d)) * 10.0 ** np.arange(d), network


@pytest.mark.parametrize("seed", range(3))
def test_as_scikit_learn_and_scipy_say(seed: int) -> None:
    f, y = pair(seed=seed)
    np.testing.assert_allclose(r_squared(f, y), r2_score(y, f, multioutput="raw_values"), rtol=1e-12)
    assert r2_outputs(f, y) == pytest.approx(r2_score(y, f), rel=1e-12)
    np.testing.assert_allclose(rmse(f, y), np.sqrt(np.mean((f - y) ** 2, axis=0)), rtol=1e-12)
    for k, one in enumerate(output_fidelity(f, y)):
        assert one.tau == pytest.approx(kendalltau(f[:, k], y[:, k]).statistic, abs=1e-12)
        assert one.r2_low < one.r2 < one.r2_high
        assert one.tau_low < one.tau < one.tau_high


def test_a_large_mean_does_not_matter() -> None:
    f, y = pair()
    plain, far = output_fidelity(f, y), output_fidelity(f + 1e6, y + 1e6)
    for a, b in zip(plain, far):
        assert (b.r2, b.r2_low, b.tau) == pytest.approx((a.r2, a.r2_low, a.tau), rel=1e-6)


def test_an_output_that_does_not_vary_is_left_out() -> None:
    f, y = pair(d=2)
    y[:, 1] = 7.0
    assert math.isnan(r_squared(f, y)[1])
    assert r2_outputs(f, y) == pytest.approx(r2_score(y[:, 0], f[:, 0]))
    one = output_fidelity(f, y)[1]
    assert [math.isnan(value) for value in (one.r2, one.tau, one.rmse)] == [True, True, False]
    with pytest.raises(NumericalError, match="undefined"):
        r2_outputs(f[:, 1], y[:, 1])

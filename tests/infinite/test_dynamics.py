"""Closed forms of training against the ordinary differential equation, against steps, and against trained networks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ntkscope import infinite
from ntkscope.core import NumericalError, UsageError
from ntkscope.infinite import Dense, Erf, Relu, dynamics, kernel_regression, kernels, max_learning_rate, sample, serial

NET = serial(Dense(1.4, 0.3), Erf(), Dense(1.4, 0.3))


def data(n: int, d: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gradient_flow_solves_its_equation() -> None:
    """d f/dt = −c Θ (f − y) on the training inputs and −c Θ(x, X) (f − y) elsewhere, by central differences."""
    x, other, y = data(6), data(3, seed=1), data(6, 2, seed=2)
    theta, cross = infinite.kernel(NET, x), infinite.kernel(NET, other, x)
    for loss, c in (("half-sum", 1.0), ("half-mean", 1 / 6), ("mean", 2 / 6)):
        training = dynamics(theta, y, loss=loss)
        now = training.predict(time=0.7).mean
        for K, test in ((theta, None), (cross, cross)):
            ends = [training.predict(test, 0.7 + s * 1e-5).mean for s in (1, -1)]
            torch.testing.assert_close((ends[0] - ends[1]) / 2e-5, -c * (K @ (now - y)), rtol=1e-7, atol=1e-9)
    assert float(training.predict(time=0.0).mean.abs().max()) < 1e-14
    torch.testing.assert_close(training.predict().mean, y, rtol=0, atol=1e-9)


def test_gradient_descent_is_its_steps() -> None:
    x, other, y = data(6), data(3, seed=1), data(6, 1, seed=2)
    theta, cross = infinite.kernel(NET, x), infinite.kernel(NET, other, x)
    start, start_test = data(6, 1, seed=3), data(3, 1, seed=4)
    f, g, step = start.clone(), start_test.clone(), 0.3
    for _ in range(25):
        residual = f - y
        f, g = f - step * (theta @ residual) / 6, g - step * (cross @ residual) / 6
    training = dynamics(theta, y, step=step)
    torch.testing.assert_close(training.predict(time=25, start=start).mean, f, rtol=0, atol=1e-12)
    found = training.predict(cross, 25, start=start, start_test=start_test).mean
    torch.testing.assert_close(found, g, rtol=0, atol=1e-12)
    with pytest.raises(UsageError, match="whole number"):
        training.predict(time=0.5)


def test_the_end_is_kernel_regression_and_bayes() -> None:
    """The mean at t → ∞ is Θ(x,X) Θ⁻¹ y; with the NNGP in place of Θ, mean and covariance are the posterior's."""
    x, other, y = data(6), data(3, seed=1), data(6, 1, seed=2)
    own, cross, rest = kernels(NET, x), kernels(NET, other, x), kernels(NET, other)
    found = dynamics(own.ntk, y).predict(cross.ntk).mean
    torch.testing.assert_close(found, kernel_regression(own.ntk, y, cross.ntk), rtol=0, atol=1e-9)
    K, k, kk = (each.nngp.dense() for each in (own, cross, rest))
    posterior = dynamics(own.nngp, y).predict(
        cross.nngp, nngp=own.nngp, nngp_test_train=cross.nngp, nngp_test=rest.nngp
    )
    expected = kk - k @ torch.linalg.solve(K, k.T)
    assert posterior.covariance is not None
    torch.testing.assert_close(posterior.covariance, expected, rtol=0, atol=1e-9)
    trained = dynamics(own.ntk, y).predict(nngp=own.nngp)
    assert trained.covariance is not None
    assert float(trained.covariance.abs().max()) < 1e-9  # every network fits the training data
    with pytest.raises(UsageError, match="all three"):
        dynamics(own.ntk, y).predict(cross.ntk, nngp=own.nngp)


def test_covariance_over_initialisations_by_drawing_them() -> None:
    """f_t = f₀(x) + A (y − f₀) with f₀ drawn from the NNGP of all inputs at once."""
    x, other, y = data(4), data(2, seed=1), data(4, 1, seed=2)
    both = kernels(NET, torch.cat([x, other]))
    theta, cross = both.ntk[:4, :4], both.ntk[4:, :4]
    training = dynamics(theta, y)
    found = training.predict(
        cross, 3.0, nngp=both.nngp[:4, :4], nngp_test_train=both.nngp[4:, :4], nngp_test=both.nngp[4:, 4:]
    )
    count = 20000
    f0 = sample(both.nngp, count)
    linear = training.predict(cross, 3.0, start=torch.zeros(4, 1), start_test=torch.zeros(2, 1)).mean
    A = torch.cat([dynamics(theta, e[:, None]).predict(cross, 3.0).mean for e in torch.eye(4, dtype=torch.float64)], 1)
    ends = f0[:, 4:] - f0[:, :4] @ A.T + linear.T
    assert found.covariance is not None
    spread = found.covariance.diagonal().max()
    torch.testing.assert_close(
        torch.cov(ends.T), found.covariance, rtol=0, atol=5 * float(spread) * math.sqrt(2 / count)
    )
    torch.testing.assert_close(ends.mean(0), found.mean[:, 0], rtol=0, atol=5 * math.sqrt(float(spread) / count))


def test_draws_have_the_kernel_as_covariance_and_small_eigenvalues_hardly_show() -> None:
    K = infinite.kernel(NET, data(8), kind="nngp")
    draws = sample(K, 20000, seed=3)
    scale = float(K.diagonal().max())
    torch.testing.assert_close(draws.T @ draws / 20000, K.dense(), rtol=0, atol=5 * scale * math.sqrt(2 / 20000))
    values = K.eigvalsh()
    left_out = (sample(K, 20000, seed=3, keep=3) - draws).square().sum(1).mean()
    share = float(values[:5].sum())
    assert float(left_out) == pytest.approx(share, rel=0.1)
    with pytest.raises(NumericalError, match="none below zero"):
        sample(-torch.eye(2, dtype=torch.float64))
    with pytest.raises(UsageError, match="keep=9"):
        sample(K, keep=9)


def test_learning_rates_at_both_thresholds() -> None:
    """Σ(f−y)²/n diverges above 1/λ, Σ(f−y)²/(2n) above 2/λ, λ of Θ/n: looked at 1 % below and above."""
    y = data(6, 1, seed=2)
    theta = infinite.kernel(NET, data(6))
    rates = max_learning_rate(theta)
    for loss, limit in (("mean", rates.inverse), ("half-mean", rates.twice)):
        sizes = [
            dynamics(theta, y, loss=loss, step=limit * s).predict(time=2000).mean.abs().max() for s in (0.99, 1.01)
        ]
        assert float(sizes[0]) < 1e3
        assert float(sizes[1]) > 1e6
        with pytest.raises(NumericalError, match="diverges"):
            dynamics(theta, y, loss=loss, step=limit * 1.01).predict()
    with pytest.raises(UsageError, match="loss='huber'"):
        dynamics(theta, y, loss="huber")


def test_time_to_learn_is_when_the_residual_is_left() -> None:
    theta = infinite.kernel(NET, data(6))
    training = dynamics(theta, data(6, 1, seed=2))
    times = training.time_to_learn(0.05)
    for i in (0, 3, 5):
        assert float(training.decay(float(times[i]))[i]) == pytest.approx(0.05, rel=1e-9)
    assert bool((times[:-1] >= times[1:]).all())  # large eigenvalues first
    steps = dynamics(theta, data(6, 1, seed=2), step=0.1).time_to_learn(0.05)
    assert bool((steps * 0.1 <= times * 1.0001).all())  # (1 − s)^t is below e^{−st}


@pytest.mark.nightly
def test_a_wide_network_ends_at_kernel_regression() -> None:
    """Trained by gradient descent from f₀ = 0 (f − f at the start), the distance falls with the width."""
    x, other = data(8), data(5, seed=1)
    y = torch.sign(data(8, 1, seed=2))
    net = serial(Dense(2.0), Relu(normalize=True), Dense())
    theta = infinite.kernel(net, x)
    expected = (
        dynamics(theta, y, step=max_learning_rate(theta).inverse).predict(infinite.kernel(net, other, x), 400).mean
    )
    gaps = []
    for width in (64, 512, 4096):
        distances = []
        for seed in range(4):
            model = infinite.finite(net, (4,), width, seed=seed).double()
            with torch.no_grad():
                zero, zero_other = model(x), model(other)
            optimizer = torch.optim.SGD(model.parameters(), lr=max_learning_rate(theta).inverse)
            for _ in range(400):
                optimizer.zero_grad()
                ((model(x) - zero - y).square().mean() / 2).backward()
                optimizer.step()
            with torch.no_grad():
                distances.append(float((model(other) - zero_other - expected).abs().max()))
        gaps.append(sum(distances) / 4)
    assert gaps[0] > 1.5 * gaps[1] > 2.25 * gaps[2]

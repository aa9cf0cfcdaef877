"""Closed forms of training against the ordinary differential equation, against steps, and against trained networks."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ntkscope import infinite
from ntkscope.core import NumericalError, UsageError
from ntkscope.infinite import Dense, Erf, Relu, dynamics, kernel_regression, kernels, max_learning_rate, sample, serial
from ntkscope.linalg import NumericalWarning

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


def twice(seed: int, n: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel of inputs of which some came twice, that of three others with them, and labels that contradict each other."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=random, dtype=torch.float64)
    x = torch.cat([x[: n // 2], x])
    other = torch.randn(3, 3, generator=random, dtype=torch.float64)
    y = torch.randn(len(x), 2, generator=random, dtype=torch.float64)
    return (x @ x.T / 3).exp().to(dtype), (other @ x.T / 3).exp().to(dtype), y


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_is_learned_through_rounding(seed: int, dtype: torch.dtype) -> None:
    """The end of training is the pseudo-inverse's, at the training inputs, elsewhere, and at any late time."""
    theta, cross, y = twice(seed, dtype=dtype)
    training = dynamics(theta, y, loss="half-sum")
    assert training.zeros == 3
    assert not training.eigenvalues[:3].any()
    inverse = torch.from_numpy(np.linalg.pinv(theta.double().numpy(), rcond=1e-6, hermitian=True))
    near = 1e-8 if dtype == torch.float64 else 1e-4
    for time in (math.inf, 1e20, 1e300):
        assert_close(training.predict(time=time).mean, theta.double() @ inverse @ y, rtol=0, atol=near)
        assert_close(training.predict(cross, time).mean, cross.double() @ inverse @ y, rtol=0, atol=near)
    assert torch.isinf(training.time_to_learn()[:3]).all()
    assert bool((training.time_to_learn() > 0).all())
    with pytest.warns(NumericalWarning, match="pseudo-inverse"):
        assert_close(kernel_regression(theta, y, cross), cross.double() @ inverse @ y, rtol=0, atol=near)


@pytest.mark.parametrize("seed", range(4))
def test_finite_times_against_the_equation(seed: int) -> None:
    """Euler's steps of the flow, and the steps themselves, on a singular kernel."""
    theta, cross, y = twice(seed)
    step, times = 1e-3, 400
    f, g = torch.zeros_like(y), torch.zeros(3, 2).double()
    for _ in range(times):
        f, g = f - step * theta @ (f - y), g - step * cross @ (f - y)
    training = dynamics(theta, y, loss="half-sum", step=step)
    assert_close(training.predict(time=times).mean, f, rtol=0, atol=1e-11)
    assert_close(training.predict(cross, times).mean, g, rtol=0, atol=1e-11)


def test_times_to_learn_of_steps() -> None:
    theta = torch.diag(torch.tensor([0.0, 1e-9, 0.5, 1.0, 2.0, 3.0]).double())
    found = dynamics(theta, torch.ones(6), loss="half-sum", step=1.0).time_to_learn(0.01)
    assert math.isinf(found[0])
    assert float(found[1]) == pytest.approx(math.log(0.01) / math.log1p(-1e-9))
    assert float(found[2]) == pytest.approx(math.log(0.01) / math.log(0.5))
    assert math.isinf(found[4])  # swings for ever
    assert math.isinf(found[5])  # diverges


def test_many_steps() -> None:
    training = dynamics(torch.diag(torch.tensor([1.9, 0.5]).double()), torch.ones(2), loss="half-sum", step=1.0)
    assert float(training.decay(3)[1]) == pytest.approx((1 - 1.9) ** 3)
    assert float(training.decay(10**15)[0]) == 0
    with pytest.raises(NumericalError, match="range of numbers"):
        dynamics(torch.eye(2).double(), torch.ones(2), loss="half-sum", step=5.0).predict(time=10_000)


def test_no_kernel_is_said() -> None:
    with pytest.warns(NumericalWarning, match="1 negative"):
        training = dynamics(torch.diag(torch.tensor([1.0, -0.5])), torch.ones(2))
    assert training.zeros == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": -1.0}, "time=-1"),
        ({"time": math.nan}, "time=nan"),
        ({"start": torch.zeros(9, 2)}, "got start alone"),
        ({"start_test": torch.zeros(3, 2)}, "got start_test alone"),
        ({"start": torch.zeros(2, 9), "start_test": torch.zeros(3, 2)}, "start of shape"),
        ({"nngp_test": torch.eye(3)}, "without nngp"),
    ],
)
def test_questions_without_an_answer(options: dict[str, Any], said: str) -> None:
    theta, cross, y = twice(0)
    with pytest.raises(UsageError, match=said):
        dynamics(theta, y).predict(cross, **options)


def test_other_refusals() -> None:
    theta, cross, y = twice(0)
    with pytest.raises(UsageError, match="test_train of shape"):
        dynamics(theta, y).predict(cross.T)
    with pytest.raises(UsageError, match="without test_train"):
        dynamics(theta, y).predict(start_test=y)
    for step in (0.0, -1.0, math.inf):
        with pytest.raises(UsageError, match="step="):
            dynamics(theta, y, step=step)
    with pytest.raises(NumericalError, match="NaN"):
        dynamics(theta, y * math.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dynamics(theta, y)

"""Wide networks against their limit: the contract, the empirical kernel, the printed formulas, slopes, convergence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from contracts.made_up import made_up
from ntkscope import infinite
from ntkscope.core import NumericalError, UsageError
from ntkscope.infinite import Conv, Dense, Erf, Flatten, Relu, serial
from ntkscope_papers.im_2021 import wide
from ntkscope_papers.im_2021.finite_vs_infinite import FiniteVsInfinite, Task, inputs_in_ball
from ntkscope_papers.im_2021.review_formulas import EXAMPLE, normalisers, printed_ntk


class TestFiniteVsInfinite(ExperimentContract):
    name = "finite-vs-infinite"
    tiny = given(
        hidden=(1,),
        widths=(16, 32),
        draws=6,
        samples=2000,
        variance_draws=4,
        variance_width=32,
        train_widths=(64, 128),
        train_items=4,
        test_items=4,
        kappas=(1.0, 0.5),
        seeds=2,
    )
    identities = ("ntkreview-csigma",)


@pytest.mark.parametrize(
    "net",
    [wide.relu_network(5, 2), serial(Dense(1.4, 0.3), Erf(), Dense(1.2, 0.7))],
    ids=["relu without biases", "erf with biases"],
)
def test_the_quick_empirical_kernel_is_that_of_the_engine(net: infinite.layer.Layer) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = infinite.finite(net, (5,), 12, seed=3).double()
    expected = ns.kernel("trntk0", model, x).dense()
    torch.testing.assert_close(wide.dense_ntk(model, x), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(wide.sample_ntk(model, x), expected, rtol=1e-10, atol=1e-12)


def test_convolutions_with_their_scale_on_the_input_are_the_same_function_with_the_same_kernel() -> None:
    net = serial(Conv(3, W_std=1.3), Relu(), Conv(3, 2), Relu(normalize=True), Flatten(), Dense())
    x = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = infinite.finite(net, (2, 6, 6), 5, seed=1).double()
    ours = wide.convolutional_network(net, (2, 6, 6), 5, 1).double()
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-12, atol=1e-12)
    found = ns.kernel("trntk0", ours, x)
    torch.testing.assert_close(found.dense(), wide.sample_ntk(plain, x), rtol=1e-10, atol=1e-12)
    with pytest.raises(UsageError, match="expected zero padding and no bias"):
        wide.convolutional_network(serial(Conv(3, b_std=1.0), Flatten(), Dense()), (2, 6, 6), 5, 1)


def test_the_sum_as_printed_is_the_kernel_and_gives_the_ledgers_example() -> None:
    x = inputs_in_ball(5, 7, 0)
    assert float(x.norm(dim=1).max()) <= 1 + 1e-12
    for hidden, value in EXAMPLE.items():
        K = infinite.kernel(wide.relu_network(7, hidden), x).dense()
        found = [[printed_ntk(a, b, hidden) for b in x] for a in x]
        torch.testing.assert_close(K, torch.tensor(found, dtype=torch.float64), rtol=1e-10, atol=1e-10)
        assert K[0, 1].item() == pytest.approx(value, abs=5e-4)


def test_normalisers_by_quadrature() -> None:
    for one in normalisers().values():
        assert one["c"] == pytest.approx(one["quadrature"], rel=1e-9)


def test_a_slope_has_an_interval_that_covers_it() -> None:
    draw = np.random.default_rng(0)
    widths = [16, 64, 256, 1024]
    covered = 0
    for _ in range(40):
        values = [(m**-0.5 * np.abs(draw.normal(size=30))).tolist() for m in widths]
        found = wide.width_slope(widths, values, power=2)
        covered += found["low"] <= -0.5 <= found["high"]
    assert covered >= 32  # 95 % of 40 is 38; fewer than 32 has probability 1e-4
    with pytest.raises(UsageError, match="at least two for a slope"):
        wide.width_slope([8], [[1.0]])


def test_training_ends_where_kernel_regression_does_when_the_network_is_linear() -> None:
    task = Task.of(4, 3, 6, hidden=1, seed=0)
    linear = infinite.finite(Dense(), (6,), 1, seed=0)
    torch.nn.init.zeros_(next(linear.parameters()))
    x, y = task.x.float(), task.y.float()
    found = wide.descend(linear, x[:4], y, lr=1.0, tolerance=1e-5)
    assert found["residual"] < 1e-5
    K = (task.x @ task.x.T) / 6
    expected = infinite.kernel_regression(K[:4, :4], task.y, K[4:, :4])
    torch.testing.assert_close(linear(x[4:]).detach()[:, 0].double(), expected, rtol=0, atol=1e-3)


def test_training_that_does_not_end_says_so() -> None:
    task = Task.of(4, 1, 6, hidden=1, seed=0)
    model = infinite.finite(task.net, (6,), 16, seed=0)
    with pytest.raises(NumericalError, match="was left after 3 steps"):
        wide.descend(model, task.x[:4].float(), task.y.float(), lr=1e-6, steps=3)


@pytest.mark.parametrize(
    ("quantiles", "holds"), [((0.8, 0.4, 0.2), True), ((0.8, 0.3, 0.4), False), ((0.8, 0.8, 0.7), False)]
)
def test_the_error_falls_from_each_width_to_the_next(quantiles: tuple[float, ...], holds: bool) -> None:
    config = FiniteVsInfinite(hidden=(1,), widths=(16, 64, 256))
    rows = {f"init/1/{width}": {"quantile": value} for width, value in zip(config.widths, quantiles)}
    assert readings("finite-vs-infinite")["ntkreview-init-theorem"](config, made_up(rows)).holds is holds

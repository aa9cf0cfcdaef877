"""Inputs of zeros and of huge size, biases of zero, scales of the NTK parametrisation: a value, or an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ntkscope import infinite, models
from ntkscope.core import NumericalError, UsageError
from ntkscope.infinite import Conv, Dense, Erf, LayerNorm, LeakyRelu, Relu, serial
from oracles.wide_networks import drawn, tangent

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def zero_biases(width: int) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
    nn.init.zeros_(net[0].bias)
    nn.init.zeros_(net[2].bias)
    return net


def test_trained_zero_biases_keep_their_gradient_or_are_refused() -> None:
    net = drawn(zero_biases, 64, 0)
    with pytest.raises(UsageError, match=r"biases of Dense \(at '0'\) are zero and trained.*standard"):
        infinite.kernel(net, X, init="measured", parametrization="ntk")
    assert infinite.kernel(net, X, init="measured", kind="nngp").shape == (2, 2)
    options = {"init": "measured", "parametrization": "standard"}
    trained = infinite.kernel(net, 0 * X, **options).dense()
    # Units of an input of zeros are zero, where PyTorch's ReLU has slope 0: only the last bias has a gradient, of 1.
    torch.testing.assert_close(trained, torch.ones_like(trained), rtol=0, atol=0)
    torch.testing.assert_close(tangent(net, 0 * X), torch.ones(2, 2).double(), rtol=0, atol=0)
    leaky = serial(*infinite.from_module(net, init="measured").layers[:1], LeakyRelu(0.5), Dense(width=1))
    expected = 64 * 0 + 0.5**2 * 1  # the gradient of the first bias through the left slope
    assert float(infinite.kernel(leaky, 0 * X, parametrization="standard").dense()[0, 1]) == pytest.approx(expected)
    net[0].bias.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    assert infinite.kernel(net, X, init="measured", parametrization="ntk").shape == (2, 2)


@pytest.mark.parametrize(
    "layer", [Relu(), LeakyRelu(0.1), Erf(), infinite.Gelu(), infinite.rules.Sin(), infinite.Activation(torch.tanh)]
)
def test_extreme_inputs_are_finite(layer: infinite.layer.Nonlinearity) -> None:
    net = serial(Dense(), layer, Dense(), layer, Dense())
    assert bool(torch.isfinite(infinite.kernel(net, 0 * X).dense()).all())
    for scale in (1e-8, 1e8):
        for seed in range(3):
            x = scale * torch.randn(1, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            K = infinite.kernel(net, torch.cat([x, x])).dense()
            torch.testing.assert_close(K[0, 1], K[0, 0], rtol=1e-9, atol=0)


def test_what_has_no_finite_answer_is_refused() -> None:
    with pytest.raises(NumericalError, match=r"LayerNorm.*\(at '1'\).*all zero"):
        infinite.kernel(serial(Dense(), LayerNorm(), Relu(), Dense()), 0 * X)
    assert bool(
        torch.isfinite(infinite.kernel(serial(Dense(), LayerNorm(eps=1e-5), Relu(), Dense()), 0 * X).dense()).all()
    )
    with pytest.raises(NumericalError, match="leave the range of"):
        infinite.kernel(serial(Dense(), Relu(), Dense()), 1e200 * X)
    images = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    with pytest.raises(NumericalError, match="all zero"):
        infinite.kernel(serial(Conv(3), LayerNorm(), Relu(), infinite.Flatten(), Dense()), images)


def test_scales_of_the_ntk_parametrisation_are_checked_and_measured() -> None:
    net = models.build("mlp", in_features=4, classes=1, widths=[64], ntk=True, sigma_w=1.5, sigma_b=0.5, init_scale=3.0)
    with pytest.raises(UsageError, match=r"weights of NTKLinear .* have scale 3"):
        infinite.kernel(net, X)
    # Values enter Σ, gradients have the scales outside: one layer, K = σ_w² x·x′/d + σ_b², whatever the weights are.
    single = models.build(
        "mlp", in_features=4, classes=1, widths=[], ntk=True, sigma_w=1.5, sigma_b=0.5, init_scale=3.0
    ).double()
    K = infinite.kernel(single, X, init="measured").dense()
    torch.testing.assert_close(K, tangent(single, X), rtol=1e-12, atol=0)

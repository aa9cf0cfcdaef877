"""What has no limit is refused by name, with what to use instead; inputs of zeros or huge size give a value or an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ntkscope import infinite, models
from ntkscope.core import NumericalError, UsageError
from ntkscope.core.errors import DuplicateName, MemoryBudgetError
from ntkscope.infinite import (
    Conv,
    Dense,
    Erf,
    Flatten,
    GlobalAvgPool,
    LayerNorm,
    LeakyRelu,
    Relu,
    Residual,
    module_rule,
    serial,
)
from ntkscope.infinite.rules import Identity, Sum
from oracles.wide_networks import drawn, tangent

X = torch.ones(2, 3, 4, 4, dtype=torch.float64)
V = torch.ones(2, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
            r"BatchNorm1d \(at '1'\); the nearest .* is LayerNorm",
        ),
        (nn.Sequential(nn.Sequential(nn.MaxPool2d(2))), r"MaxPool2d \(at '0.0'\).*average pooling"),
        (
            nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)),
            r"Dropout \(at '1'\) is in training mode; .*model.eval\(\)",
        ),
        (nn.Sequential(nn.LayerNorm(4)), r"LayerNorm \(at '0'\) has a trained scale.*elementwise_affine=False"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), r"has 2 groups"),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")),
            "'reflect'; expected 'zeros' or 'circular'",
        ),
        (nn.Sequential(nn.AvgPool2d(2, padding=1)), "expected plain windows"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2)), "expected output size 1"),
        (nn.TransformerEncoderLayer(4, 1), "TransformerEncoderLayer; a container of your own needs a rule"),
    ],
)
def test_modules_without_a_rule(module: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        infinite.kernel(module, X)


def test_weights_that_are_not_the_default_are_not_passed_over() -> None:
    module = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1))
    nn.init.kaiming_normal_(module[0].weight)
    with pytest.raises(UsageError, match=r"weights of Linear \(at '0'\) have scale 1\..*init=\"measured\""):
        infinite.kernel(module, V)
    assert infinite.kernel(module, V, init="measured").shape == (2, 2)
    assert infinite.kernel(module, V, init="default").shape == (2, 2)


def test_a_container_with_a_forward_of_its_own_needs_its_own_rule() -> None:
    class Doubled(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    module = Doubled(nn.Linear(3, 8))
    with pytest.raises(UsageError, match="no infinite-width rule for Doubled"):
        infinite.kernel(module, V)

    @module_rule(Doubled)
    def doubled(module: Doubled, translate: infinite.registry.Translator, path: str) -> infinite.layer.Layer:
        inner = translate(module[0], f"{path}.0")
        return serial(inner, Dense(2.0))

    try:
        assert infinite.kernel(module, V, kind="nngp").shape == (2, 2)
        with pytest.raises(DuplicateName, match="Doubled has two"):
            module_rule(Doubled)(doubled)
    finally:
        del infinite.registry.MODULES[Doubled]


@pytest.mark.parametrize(
    ("net", "x", "message"),
    [
        (serial(Conv(3), Dense()), X, r"Dense.*\(at '1'\) follows images.*Flatten"),
        (serial(Conv(3)), V, "follows vectors"),
        (serial(Dense(), Relu(), Relu()), V, r"Relu.*\(at '2'\).*put a Dense or Conv"),
        (serial(Dense(), Relu(), LayerNorm()), V, "directly behind Dense or Conv"),
        (serial(Conv(3), Flatten(), Relu()), X, "put a Dense or Conv"),
        (serial(Dense(), Residual(Relu()), Sum((Identity(), Identity()))), V, "they are correlated"),
        (serial(Conv(3), Sum((Identity(), Conv(3, 2)))), X, "expected one shape"),
        (serial(Conv(5, padding="valid")), X, "leaves nothing"),
        (serial(Conv(3, 3, "circular")), X, "winds a stride"),
        (serial(GlobalAvgPool()), V, "follows vectors"),
        (serial(Conv((3, 3, 3))), X, "expected as many numbers"),
    ],
)
def test_layers_that_do_not_fit(net: infinite.layer.Layer, x: torch.Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        infinite.kernel(net, x)


def test_arguments() -> None:
    net = serial(Dense(), Relu(), Dense())
    with pytest.raises(UsageError, match="pass store="):
        infinite.kernel(net, V, executor="tcp://localhost:1")
    with pytest.raises(UsageError, match="give that layer width"):
        infinite.kernel(net, V, parametrization="standard")
    with pytest.raises(UsageError, match=r"expected torch.float64 or torch.float32"):
        infinite.kernel(net, V, dtype=torch.float16)
    with pytest.raises(UsageError, match="expected samples alike"):
        infinite.kernel(net, V, V[:, :2])
    with pytest.raises(NumericalError, match="NaN"):
        infinite.kernel(net, V * float("nan"))
    with pytest.raises(MemoryBudgetError, match="smallest budget that works"):
        infinite.kernel(serial(Conv(3), Relu(), GlobalAvgPool(), Dense()), X, memory=100)
    with pytest.raises(UsageError, match="padding='full'"):
        Conv(3, padding="full")


INPUTS = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def zero_biases(width: int) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
    nn.init.zeros_(net[0].bias)
    nn.init.zeros_(net[2].bias)
    return net


def test_trained_zero_biases_keep_their_gradient_or_are_refused() -> None:
    net = drawn(zero_biases, 64, 0)
    with pytest.raises(UsageError, match=r"biases of Dense \(at '0'\) are zero and trained.*standard"):
        infinite.kernel(net, INPUTS, init="measured", parametrization="ntk")
    assert infinite.kernel(net, INPUTS, init="measured", kind="nngp").shape == (2, 2)
    options = {"init": "measured", "parametrization": "standard"}
    trained = infinite.kernel(net, 0 * INPUTS, **options).dense()
    # Units of an input of zeros are zero, where PyTorch's ReLU has slope 0: only the last bias has a gradient, of 1.
    torch.testing.assert_close(trained, torch.ones_like(trained), rtol=0, atol=0)
    torch.testing.assert_close(tangent(net, 0 * INPUTS), torch.ones(2, 2).double(), rtol=0, atol=0)
    leaky = serial(*infinite.from_module(net, init="measured").layers[:1], LeakyRelu(0.5), Dense(width=1))
    expected = 64 * 0 + 0.5**2 * 1  # the gradient of the first bias through the left slope
    assert float(infinite.kernel(leaky, 0 * INPUTS, parametrization="standard").dense()[0, 1]) == pytest.approx(
        expected
    )
    net[0].bias.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    assert infinite.kernel(net, INPUTS, init="measured", parametrization="ntk").shape == (2, 2)


@pytest.mark.parametrize(
    "layer", [Relu(), LeakyRelu(0.1), Erf(), infinite.Gelu(), infinite.rules.Sin(), infinite.Activation(torch.tanh)]
)
def test_extreme_inputs_are_finite(layer: infinite.layer.Nonlinearity) -> None:
    net = serial(Dense(), layer, Dense(), layer, Dense())
    assert bool(torch.isfinite(infinite.kernel(net, 0 * INPUTS).dense()).all())
    for scale in (1e-8, 1e8):
        for seed in range(3):
            x = scale * torch.randn(1, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            K = infinite.kernel(net, torch.cat([x, x])).dense()
            torch.testing.assert_close(K[0, 1], K[0, 0], rtol=1e-9, atol=0)


def test_what_has_no_finite_answer_is_refused() -> None:
    with pytest.raises(NumericalError, match=r"LayerNorm.*\(at '1'\).*all zero"):
        infinite.kernel(serial(Dense(), LayerNorm(), Relu(), Dense()), 0 * INPUTS)
    assert bool(
        torch.isfinite(infinite.kernel(serial(Dense(), LayerNorm(eps=1e-5), Relu(), Dense()), 0 * INPUTS).dense()).all()
    )
    with pytest.raises(NumericalError, match="leave the range of"):
        infinite.kernel(serial(Dense(), Relu(), Dense()), 1e200 * INPUTS)
    images = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    with pytest.raises(NumericalError, match="all zero"):
        infinite.kernel(serial(Conv(3), LayerNorm(), Relu(), infinite.Flatten(), Dense()), images)


def test_scales_of_the_ntk_parametrisation_are_checked_and_measured() -> None:
    net = models.build("mlp", in_features=4, classes=1, widths=[64], ntk=True, sigma_w=1.5, sigma_b=0.5, init_scale=3.0)
    with pytest.raises(UsageError, match=r"weights of NTKLinear .* have scale 3"):
        infinite.kernel(net, INPUTS)
    # Values enter Σ, gradients have the scales outside: one layer, K = σ_w² x·x′/d + σ_b², whatever the weights are.
    single = models.build(
        "mlp", in_features=4, classes=1, widths=[], ntk=True, sigma_w=1.5, sigma_b=0.5, init_scale=3.0
    ).double()
    K = infinite.kernel(single, INPUTS, init="measured").dense()
    torch.testing.assert_close(K, tangent(single, INPUTS), rtol=1e-12, atol=0)

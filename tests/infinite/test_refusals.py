"""What has no limit is refused by name, with where it sits and what to use instead."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ntkscope import infinite
from ntkscope.core import NumericalError, UsageError
from ntkscope.core.errors import DuplicateName, MemoryBudgetError
from ntkscope.infinite import Conv, Dense, Flatten, GlobalAvgPool, LayerNorm, Relu, Residual, module_rule, serial
from ntkscope.infinite.rules import Identity, Sum

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

"""Every architecture keeps the contract; full-size parameter counts; nothing registered goes untested."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope.models
from contracts.model import ModelContract, assert_samples_independent, given
from ntkscope.core import UsageError
from ntkscope.models import MODELS, build

Row = tuple[str, Mapping[str, Any], tuple[int, ...], int, int]
SURROGATE_PAPER = given(
    in_channels=3, image_size=32, classes=1, channels=(64, 32, 8), convolutions=2, hidden=(128, 64), ntk=True
)
ARCHITECTURES: dict[str, Row] = {  # name, options, one input, outputs, parameters; kept small
    "MLP": ("mlp", given(in_features=12, classes=3, widths=[8, 5], activation="tanh"), (3, 2, 2), 3, 167),
    "MLPInNTKParametrisation": (
        "mlp",
        given(in_features=6, classes=2, widths=7, depth=3, ntk=True, activation="normalised-relu"),
        (6,),
        2,
        177,
    ),
    "LeNet": ("lenet", given(width=0.5), (1, 28, 28), 10, 15_738),
    "AlexNet": ("alexnet", given(width=0.02), (3, 63, 63), 10, 23_837),  # the smallest images
    "SmallCNN": ("small_cnn", given(image_size=8, classes=10), (1, 8, 8), 10, 23_946),
    "SmallCNNOfTheSurrogatePaper": ("small_cnn", SURROGATE_PAPER, (3, 32, 32), 1, 94_161),
    "PoisonCNN": ("poison_cnn", given(width=0.25), (3, 32, 32), 10, 53_234),
    "ResNet18": ("resnet18", given(width=0.125), (3, 16, 16), 10, 176_402),
    "ResNet34": ("resnet34", given(width=0.0625, max_pool=True, classes=4), (3, 16, 16), 4, 84_344),
    "ResNet20": ("resnet20", given(), (3, 16, 16), 10, 269_722),
    "ResNet56": ("resnet56", given(), (3, 8, 8), 10, 853_018),
    "MobileNetV2": ("mobilenetv2", given(width=0.125), (3, 16, 16), 10, 105_448),
    "Quadratic": ("quadratic", given(in_features=5, width=7), (5,), 1, 42),
}
for title, row in ARCHITECTURES.items():
    attributes = dict(zip(("name", "options", "item_shape", "classes", "parameters"), row, strict=True))
    globals()[f"Test{title}"] = type(f"Test{title}", (ModelContract,), attributes)


FULL_SIZE = [
    ("lenet", given(), 61_706),
    ("lenet", given(width=2), 244_362),
    ("lenet", given(width=4), 972_554),
    ("lenet", given(width=5), 1_518_090),
    ("lenet", given(width=10), 6_060_170),
    ("lenet", given(width=25), 37_830_410),
    ("lenet", given(width=60), 217_800_970),
    ("lenet", given(in_channels=3, image_size=32), 62_006),
    ("lenet", given(in_channels=3, image_size=32, width=2), 244_962),
    ("lenet", given(padding=0), 44_426),
    ("alexnet", given(), 57_044_810),
    ("alexnet", given(classes=1000), 61_100_840),
    ("alexnet", given(width=4), 911_834_378),
    ("mlp", given(in_features=1, widths=128, depth=3, activation="tanh"), 33_409),
    ("mlp", given(in_features=1000, widths=[1500], bias=False, ntk=True), 1_501_500),
    ("poison_cnn", given(), 820_394),
    ("resnet18", given(), 11_173_962),
    ("resnet18", given(max_pool=True), 11_173_962),
    ("resnet34", given(), 21_282_122),
    ("mobilenetv2", given(), 2_236_682),
    ("quadratic", given(in_features=1024, width=1024), 1_049_600),
]


@pytest.mark.parametrize(("name", "options", "parameters"), FULL_SIZE)
def test_full_size_parameter_count(name: str, options: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):  # counted without a byte of weights
        assert sum(p.numel() for p in build(name, **options).parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "options", "shape", "side"),
    [
        ("alexnet", given(width=0.02), (3, 224, 224), 6),
        ("resnet18", given(width=0.0625), (3, 32, 32), 4),
        ("resnet18", given(width=0.0625, max_pool=True), (3, 32, 32), 2),
        ("resnet20", given(), (3, 32, 32), 8),
        ("mobilenetv2", given(width=0.125), (3, 32, 32), 4),
    ],
)
def test_side_of_the_last_feature_map(name: str, options: dict[str, Any], shape: tuple[int, ...], side: int) -> None:
    model, seen = build(name, **options).eval(), []
    model.avgpool.register_forward_hook(lambda module, args, output: seen.append(args[0].shape[-2:]))
    assert model(torch.zeros(1, *shape)).shape == (1, 10)
    assert seen == [(side, side)]


def test_poison_cnn_has_21_layers() -> None:
    counted = (nn.Conv2d, nn.BatchNorm2d, nn.BatchNorm1d, nn.MaxPool2d, nn.Dropout, nn.Linear)
    assert sum(isinstance(m, counted) for m in build("poison_cnn").modules()) == 21


def test_every_architecture_file_registers_something_and_something_tests_it() -> None:
    files = {m.name for m in pkgutil.iter_modules(ntkscope.models.__path__)} - {"registry"}
    files = {name for name in files if not name.startswith("_")}
    registered = {factory.__module__.rpartition(".")[2] for factory in MODELS.values()}
    assert files == registered
    tested = {cls.name for cls in ModelContract.__subclasses__()}
    with_own_file = {"gpt", "text"}
    assert set(MODELS) == tested | with_own_file


def test_every_architecture_is_a_shortcut_of_the_room() -> None:
    for name, factory in MODELS.items():
        assert getattr(ntkscope.models, name) is factory
        assert name in ntkscope.models.__all__


def test_no_forward_hides_outside_plain_modules() -> None:
    """Sequential networks must not override forward: rules for module trees walk their children in order."""
    for name in MODELS:
        module = importlib.import_module(MODELS[name].__module__)
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, nn.Sequential):
                assert cls.forward is nn.Sequential.forward, cls


def test_missing_option_is_named() -> None:
    with pytest.raises(UsageError, match="mlp needs the option 'in_features'; it takes: in_features, classes=1"):
        build("mlp")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenet", given(image_size=8), "8x8 image padded by 0 is too small for LeNet-5"),
        ("small_cnn", given(image_size=7), "got 3 poolings of a 7x7 image; expected between 1 and 2"),
        ("small_cnn", given(channels=()), "0 poolings"),
        ("poison_cnn", given(image_size=8), "got a 8x8 image; expected at least 16x16"),
        ("mlp", given(in_features=2, widths=[3, 4], depth=3), "give one width and a depth, or a list of widths alone"),
        ("mlp", given(in_features=2, sigma_w=[1.0, 1.0]), "sigma_w has 2 values; expected one, or 3"),
        ("mlp", given(in_features=2, sigma_b=1.0), "without sigma_w"),
        ("mlp", given(in_features=2, widths=[3], symmetric=True), "3 units in the last hidden layer"),
        ("mlp", given(in_features=2, widths=[], symmetric=True), "no hidden layer"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(name, **options)


def test_canary_a_network_that_mixes_samples_is_noticed() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    with pytest.raises(AssertionError):
        assert_samples_independent(Centred(), torch.eye(3, dtype=torch.float64))

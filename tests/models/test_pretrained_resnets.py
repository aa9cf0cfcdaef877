"""ResNet-20 and 56: the shortcut without parameters, the published weights, the published accuracy."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

import ntkscope.data
from ntkscope.core import generator
from ntkscope.models import resnet20, resnet56
from ntkscope.models.resnet_cifar import PadBlock, PadShortcut, pretrained

ROOT = os.environ.get("NTKSCOPE_DATA")
needs_data = pytest.mark.skipif(not ROOT, reason="needs real data: set $NTKSCOPE_DATA")


def naive_shortcut(x: Tensor, out_channels: int) -> Tensor:
    """Entry by entry: channel k of the output is channel k − width/4 of every second pixel, elsewhere zero."""
    n, c, h, w = x.shape
    out = torch.zeros(n, out_channels, (h + 1) // 2, (w + 1) // 2, dtype=x.dtype)
    for k in range(c):
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                out[:, k + out_channels // 4, i, j] = x[:, k, 2 * i, 2 * j]
    return out


@pytest.mark.parametrize(("channels", "side"), [(16, 8), (32, 6), (4, 5)])
def test_shortcut_is_exact(channels: int, side: int) -> None:
    x = torch.randn(2, channels, side, side, generator=generator(0, "x"))
    assert torch.equal(PadShortcut(channels // 2)(x), naive_shortcut(x, 2 * channels))


def test_block_without_its_branch_is_the_shortcut() -> None:
    block = PadBlock(4, 8).eval()
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 4, 6, 6, generator=generator(0, "x"))
    assert torch.equal(block(x), naive_shortcut(x, 8).relu())


def test_keys_are_those_of_the_published_weights() -> None:
    for model, blocks, tensors in ((resnet20(), 3, 97), (resnet56(), 9, 277)):
        keys = {key for key in model.state_dict() if not key.endswith("num_batches_tracked")}
        bn = ("weight", "bias", "running_mean", "running_var")
        expected = {"conv1.weight", "linear.weight", "linear.bias", *(f"bn1.{part}" for part in bn)}
        for stage in (1, 2, 3):
            for block in range(blocks):
                for i in (1, 2):
                    name = f"layer{stage}.{block}."
                    expected |= {f"{name}conv{i}.weight", *(f"{name}bn{i}.{part}" for part in bn)}
        assert keys == expected
        assert len(keys) == tensors


def accuracy(name: str, images: int) -> int:
    """How many of the first test images the published network puts in their class."""
    model, test = pretrained(name, ROOT), ntkscope.data.load("cifar10", normalise="imagenet", root=ROOT).test
    with torch.inference_mode():
        outputs = torch.cat([model(x) for x in test.x[:images].split(250)])
    return int((outputs.argmax(1) == test.y[:images]).sum())


@pytest.mark.data
@needs_data
@pytest.mark.parametrize(
    ("name", "images", "correct"),
    [
        pytest.param("resnet20", 500, 455, marks=pytest.mark.guard),
        pytest.param("resnet56", 200, 188, marks=pytest.mark.guard),
        pytest.param("resnet20", 10_000, 9173, marks=pytest.mark.nightly),  # as published
        pytest.param("resnet56", 10_000, 9339, marks=pytest.mark.nightly),
    ],
)
def test_published_accuracy(name: str, images: int, correct: int) -> None:
    assert accuracy(name, images) == correct


def test_weights_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NTKSCOPE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"set \$NTKSCOPE_DATA or give root"):
        pretrained("resnet20")

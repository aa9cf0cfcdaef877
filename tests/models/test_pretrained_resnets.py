"""ResNet-20 and 56: the shortcut without parameters, the published weights, the published accuracy."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

import ntkscope.data
from ntkscope.core import generator
from ntkscope.models import check, resnet20, resnet56
from ntkscope.models.resnet_cifar import PadBlock, PadShortcut

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


def cifar_test(n: int) -> tuple[Tensor, Tensor]:
    test = ntkscope.data.load("cifar10", normalise="imagenet", root=ROOT).test
    return test.x[:n], test.y[:n]


@pytest.mark.data
@needs_data
@pytest.mark.guard
def test_published_weights_on_the_first_images() -> None:
    x, y = cifar_test(500)
    assert check.count_correct(check.pretrained("resnet20"), x, y) == 455
    assert check.count_correct(check.pretrained("resnet56"), x[:200], y[:200]) == 188


@pytest.mark.data
@pytest.mark.nightly
@needs_data
def test_published_accuracy_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["resnet20", "resnet56", "--root", str(ROOT)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("resnet20: 91.73 % of 10000")
    assert lines[1].startswith("resnet56: 93.39 % of 10000")


def test_counting() -> None:
    x = torch.zeros(7, 1, 1, 1)
    x[:5] = 1
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.5], [1.0]]))
    assert check.count_correct(model, x, torch.tensor([1, 1, 1, 1, 0, 0, 1]), batch_size=3) == 5
    assert not model.training


def test_check_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("NTKSCOPE_DATA", raising=False)
    assert check.main(["resnet20"]) == 2
    assert "NTKSCOPE_DATA" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        check.main(["resnet21"])

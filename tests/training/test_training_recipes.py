"""Recipes: the mechanics on a few images; the promised accuracy on the real data, by night."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ntkscope import models
from ntkscope.core import Record, generator
from ntkscope.core.errors import RecordError
from ntkscope.training import CropFlip, evaluate
from ntkscope.training.lenet_mnist import RECIPE as LENET
from ntkscope.training.recipes import main, run_recipe
from ntkscope.training.resnet18_cifar10 import RECIPE as RESNET

ROOT = os.environ.get("NTKSCOPE_DATA")
needs_data = pytest.mark.skipif(not ROOT, reason="NTKSCOPE_DATA is not set: no real data to train on")


def test_crops_are_windows_of_the_padded_image_and_flips_mirror() -> None:
    x = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    draw = CropFlip(padding=1, fill="zero")
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    seen = set()
    for trial in range(40):
        y = draw(x, generator(trial, "captured"))
        assert torch.equal(y, draw(x, generator(trial, "captured")))
        windows = {
            (top, left, flip): (padded[1, :, top : top + 4, left : left + 5].flip(-1) if flip else
                                padded[1, :, top : top + 4, left : left + 5])
            for top in range(3)
            for left in range(3)
            for flip in (False, True)
        }  # fmt: skip
        found = [key for key, window in windows.items() if torch.equal(window, y[1])]
        assert len(found) == 1
        seen.update(found)
    assert len(seen) > 12  # 18 windows, 40 draws


def test_reflection_has_no_black_border() -> None:
    x = torch.ones(8, 1, 6, 6)
    assert bool((CropFlip(padding=4)(x, generator(0, "captured")) == 1).all())
    assert bool((CropFlip(padding=4, fill="zero")(x, generator(0, "captured")) == 0).any())


@needs_data
@pytest.mark.data
@pytest.mark.guard
def test_the_lenet_recipe_on_a_few_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--root", str(ROOT), "--out", str(tmp_path / "a"), "--epochs", "1", "--limit", "512", "--seed", "3"]
    assert main(LENET, arguments) == 1
    assert "missed the target of 98.8 %" in capsys.readouterr().out
    record = Record.open(tmp_path / "a")
    assert record.status == "done"
    assert record.seeds == {"seed": 3}
    assert record.metrics["data"]["normalise"] == "standard"
    assert record.to_json()["command"].startswith("python -m ntkscope.training.lenet_mnist --root")
    # the weights on disk are the network that was scored
    from ntkscope import data

    test = data.load("mnist", root=ROOT).test.take(range(512))
    model = models.load_weights(models.build("lenet"), tmp_path / "a" / "weights.safetensors")
    assert evaluate(model, test)["accuracy"] == record.metrics["test_accuracy"]
    # again: nothing is trained twice, and another setting is refused
    again = run_recipe(LENET, tmp_path / "a", root=ROOT, epochs=1, limit=512, seed=3)
    assert again.metrics["test_accuracy"] == record.metrics["test_accuracy"]
    with pytest.raises(RecordError, match="another config"):
        run_recipe(LENET, tmp_path / "a", root=ROOT, epochs=2, limit=512, seed=3)


@needs_data
@pytest.mark.data
@pytest.mark.nightly
def test_the_resnet_recipe_on_a_few_images(tmp_path: Path) -> None:
    record = run_recipe(RESNET, tmp_path / "r", root=ROOT, epochs=1, limit=1024, width=0.125)
    assert record.metrics["steps"] == 2
    assert record.metrics["data"]["normalise"] == "standard"
    weights = models.read_weights(tmp_path / "r" / "weights.safetensors")
    assert weights["fc.weight"].shape == (10, 64)


@needs_data
@pytest.mark.data
@pytest.mark.nightly
def test_lenet_reaches_what_was_promised(tmp_path: Path) -> None:
    record = run_recipe(LENET, tmp_path / "l", root=ROOT)
    assert record.metrics["test_accuracy"] >= 0.988

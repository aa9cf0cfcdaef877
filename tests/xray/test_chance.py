"""Networks at chance: random weights and constant answers are refused, networks that learned are not, whatever the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.cli.xray import xray as command
from ntkscope.core import Part, UsageError
from ntkscope.xray.items import collect_both
from ntkscope.xray.network import check_trained
from ntkscope.xray.task import Standing
from xray.small import blobs, trained


def checked(model: nn.Module, train: Part, test: Part) -> None:
    check_trained(model.eval(), *collect_both(train, test), seed=0, device=None)


@pytest.mark.parametrize("seed", range(8))
def test_random_weights_are_refused(seed: int) -> None:
    split = ns.data.load("digits")
    model = ns.models.build("small_cnn", in_channels=1, classes=10, image_size=8, seed=seed)
    with pytest.raises(UsageError, match=r"right on .* % of 256 training items \(chance: .* %\) and .*--untrained"):
        checked(model, split.train, split.test)


def test_a_trained_network_is_not() -> None:
    train, test = blobs()
    checked(trained(train)[1], train, test)


def test_a_network_that_learned_shuffled_labels_by_heart_is_not() -> None:
    """It is at chance on test items alone."""
    train, test = blobs()
    lookup = Part(train.x, train.y[torch.randperm(len(train), generator=torch.Generator().manual_seed(0))])

    class Heart(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nearest = torch.cdist(x, lookup.x).argmin(1)
            return nn.functional.one_hot(lookup.y[nearest], 3).float()

    checked(Heart(), lookup, test)


def test_always_the_most_frequent_class_is_chance() -> None:
    y = np.array([0] * 90 + [1] * 10)
    constant = Standing.of(np.zeros(100, dtype=np.int64), y)
    assert (constant.accuracy, constant.at_chance) == (0.9, True)
    predicted = y.copy()
    predicted[90:95] = 0  # half of the rare class found
    assert not Standing.of(predicted, y).at_chance


def test_many_classes_and_a_weak_network() -> None:
    """5 % of 200 classes is ten times chance: weak, not untrained."""
    y = np.arange(4000) % 200
    predicted = (y + 1) % 200
    predicted[:200] = y[:200]
    assert not Standing.of(predicted, y).at_chance
    assert Standing.of((y + 1) % 200, y).at_chance


def test_nothing_is_written_and_untrained_says_it_is_meant(tmp_path: Path) -> None:
    train, test = blobs()
    model = nn.Sequential(nn.Linear(5, 3))
    with torch.no_grad():
        model[0].weight.zero_()
    with pytest.raises(UsageError, match="untrained=True"):
        ns.xray(model, train, test, tmp_path / "x", progress=False)
    assert not (tmp_path / "x").exists()


def test_a_built_in_network_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--model mlp came without --weights.*--untrained"):
        command(model="mlp", data="digits", out=tmp_path)

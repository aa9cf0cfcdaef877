"""Data problems: what was planted is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part
from ntkscope.data import label_noise
from ntkscope.xray.sections.problems import SECTION
from xray.small import blobs, only, xrayed


def problems(folder: Path, model: nn.Module, train: Part, test: Part) -> dict[str, Any]:
    with only(SECTION):
        record = ns.xray(model, train, test, folder, kernels=["ck"], untrained=True, progress=False)
    entry = record.metrics["section:problems"]
    assert entry["status"] == "done", entry["why"]
    return dict(entry["data"])


def precision(found: list[dict[str, Any]], noisy: torch.Tensor) -> float:
    """The share of planted ones among as many of the most doubtful as were planted."""
    planted = int(noisy.sum())
    return sum(bool(noisy[entry["original"]]) for entry in found[:planted]) / planted


@pytest.mark.guard
def test_planted_wrong_labels_are_at_the_top(tmp_path: Path) -> None:
    split = ns.data.load("digits")
    train = label_noise(split.train.take(range(500)), 0.03, classes=10, seed=1)
    model = ns.models.build("mlp", in_features=64, classes=10, widths=48, depth=1)
    ns.training.fit(model, train, lr=3e-3, optimizer="adam", epochs=12, batch_size=64, measure=False).final()
    found = problems(tmp_path, model, train, split.test.take(range(60)))["mislabelled"]
    noisy, clean = train.extras["noisy"], train.extras["clean_y"]
    # 15 of 500 are planted; the digits have a few doubtful ones of their own, so not all 15 places are theirs
    assert precision(found, noisy) >= 0.8
    assert bool(noisy[[entry["original"] for entry in found[:8]]].all())
    hits = [entry for entry in found[:15] if noisy[entry["original"]]]
    assert np.mean([entry["suggested"] == int(clean[entry["original"]]) for entry in hits]) >= 0.8


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_planted_wrong_labels_of_the_demo_network(tmp_path: Path, seed: int) -> None:
    """The demo's network trained on all digits with 3 % of wrong labels, which it has mostly not learned by heart."""
    split = ns.data.load("digits", seed=seed)
    train = label_noise(split.train, 0.03, classes=10, seed=seed)
    model = ns.models.build("small_cnn", image_size=8, classes=10, seed=seed)
    ns.training.fit(model, train, lr=3e-3, optimizer="adam", epochs=15, batch_size=64, seed=seed, measure=False).final()
    found = problems(tmp_path, model, train, split.test)["mislabelled"]
    assert precision(found, train.extras["noisy"]) >= 0.8


def test_planted_duplicates_are_found_and_no_others(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(80, 6, generator=draw)
    x[70:75] = x[:5]  # the same
    x[75:80] = x[5:10] + 1e-3 * torch.randn(5, 6, generator=draw)  # nearly the same
    y = torch.arange(80) % 2
    y[70:80] = y[:10]
    y[72] = 1 - y[2]  # the same input under another label
    model = ns.models.build("mlp", in_features=6, classes=2, widths=32, depth=1)
    found = problems(tmp_path, model, Part(x, y), Part(x[20:40], y[20:40]))["duplicates"]
    assert {(entry["a"], entry["b"]) for entry in found} == {(i, i + 70) for i in range(10)}
    assert sorted(entry["a"] for entry in found if entry["exact"]) == [0, 1, 2, 3, 4]
    assert [entry["a"] for entry in found if not entry["same_label"]] == [2]


def test_shares_are_those_of_all_attributions(tmp_path: Path) -> None:
    train, _ = blobs()
    with only(SECTION):
        record = xrayed(tmp_path, kernels=["ck"])
    coef = np.asarray(record.arrays["surrogates.coef.trntk"])[:, :-1]
    diagonal = np.sqrt(np.diagonal(record.arrays["kernels.trntk0.train"]))
    others = np.sqrt(record.arrays["kernels.trntk0.test_diagonal"])
    kernel = record.arrays["kernels.trntk0.test"] / np.outer(others, diagonal)
    predicted = np.asarray(record.arrays["surrogates.logits.trntk"]).argmax(1)
    size = np.zeros(len(train))
    for row, label in zip(kernel, predicted):
        size += np.abs(coef[label] * row)
    shares = np.asarray(record.arrays["problems.share"])
    np.testing.assert_allclose(shares, size / size.sum(), rtol=1e-5)  # the kernel is in float32
    listed = record.metrics["section:problems"]["data"]["dominating"]
    assert [entry["index"] for entry in listed[:3]] == np.argsort(-shares, kind="stable")[:3].tolist()
    assert listed[0]["times_fair"] == pytest.approx(shares.max() * len(train))

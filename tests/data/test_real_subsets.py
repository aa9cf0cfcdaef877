"""Class subsets, stratified samples and normalisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.core import UsageError
from ntkscope.core.errors import UnknownName
from ntkscope.data.normalise import constants, to_float
from ntkscope.data.subsets import Images, Subset, image_split, keep_classes, resolve_classes, stratified

NAMES = ("cat", "dog", "frog")
STANDARD = ((0.5, 0.25, 0.125), (0.5, 0.25, 2.0))


def test_classes_by_label_and_by_name() -> None:
    assert resolve_classes(None, NAMES) == (0, 1, 2)
    assert resolve_classes(("frog", 0), NAMES) == (2, 0)
    assert resolve_classes([1], NAMES) == (1,)


@pytest.mark.parametrize(
    ("classes", "error", "message"),
    [
        (("dgo",), UnknownName, r"unknown class 'dgo'; did you mean 'dog'\? known: cat, dog, frog"),
        ((3,), UsageError, r"got class 3; expected a label 0 \.\.\. 2 or one of cat, dog, frog"),
        ((-1,), UsageError, r"got class -1"),
        ((1, "dog"), UsageError, r"none of them twice"),
        ((), UsageError, r"at least one class"),
        ("dog", UsageError, r"'dog' is one string; expected several classes"),
    ],
)
def test_bad_classes(classes: tuple[int | str, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve_classes(classes, NAMES)


@settings(max_examples=50, deadline=None)
@given(
    y=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    kept=st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
)
def test_keep_classes_renames_in_order(y: list[int], kept: list[int]) -> None:
    index, renamed = keep_classes(np.array(y, np.uint8), kept)
    assert [y[i] for i in index] == [kept[k] for k in renamed]
    assert len(index) == sum(label in kept for label in y)
    assert (np.diff(index) > 0).all()


@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=6), share=st.floats(0, 1), seed=st.integers(0, 9))
def test_stratified_keeps_proportions(counts: list[int], share: float, seed: int) -> None:
    y = np.repeat(np.arange(len(counts)), counts).astype(np.int64)
    limit = max(len(counts), round(share * len(y)))
    index = stratified(y, limit, seed, "test")
    found = np.bincount(y[index], minlength=len(counts))
    assert len(index) == limit
    assert (np.diff(index) > 0).all()
    assert (found >= 1).all()
    assert (found <= counts).all()
    if limit * min(counts) >= len(y):  # no class was lifted to one item: largest remainders, less than 1 off
        assert np.abs(found - limit * np.array(counts) / len(y)).max() < 1


def test_stratified_is_seeded_nested_and_whole_without_limit() -> None:
    y = np.arange(200, dtype=np.int64) % 4
    small, large = stratified(y, 20, 0, "a"), stratified(y, 60, 0, "a")
    assert set(small) < set(large)
    assert np.array_equal(small, stratified(y, 20, 0, "a"))
    assert not np.array_equal(small, stratified(y, 20, 1, "a"))
    assert not np.array_equal(small, stratified(y, 20, 0, "b"))
    for limit in (None, 200, 500):
        assert np.array_equal(stratified(y, limit, 0, "a"), np.arange(200))
    with pytest.raises(UsageError, match=r"got a sample of 3 for 4 classes"):
        stratified(y, 3, 0, "a")


def test_normalisations() -> None:
    images = np.array([0, 51, 255], np.uint8).reshape(1, 3, 1, 1)

    def values(how: object) -> list[float]:
        return to_float(images, *constants(how, 3, STANDARD)).flatten().tolist()

    assert values(None) == pytest.approx([0, 51, 255], rel=1e-6)
    assert values("unit") == pytest.approx([0, 0.2, 1])
    assert values("standard") == pytest.approx([-1, -0.2, 0.4375], rel=1e-6)
    assert values("imagenet") == pytest.approx([-0.485 / 0.229, (0.2 - 0.456) / 0.224, 0.594 / 0.225], rel=1e-6)
    assert values(((0.0, 0.1, 0.2), (1.0, 2.0, 4.0))) == pytest.approx([0, 0.05, 0.2], rel=1e-6)
    assert values((0.5, 0.5)) == pytest.approx([-1, -0.6, 1], rel=1e-6)


@pytest.mark.parametrize(
    ("how", "channels", "message"),
    [
        ("imagenet", 1, r"'imagenet' is for 3 channels, these images have 1"),
        ("standart", 1, r"got normalise='standart'; expected 'standard', 'imagenet', 'unit', None or a pair"),
        (((0.0,), (1.0,)), 3, r"the mean is \(0\.0,\); expected one finite number, or 3"),
        ((0.0, 0.0), 1, r"the std is 0\.0; expected positive numbers"),
        ((float("nan"), 1.0), 1, r"the mean is nan; expected one finite number"),
    ],
)
def test_bad_normalisations(how: object, channels: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        constants(how, channels, ((0.0,) * channels, (1.0,) * channels))


def test_image_split_selects_before_it_converts() -> None:
    random = np.random.default_rng(0)
    images, y = random.integers(0, 256, (90, 3, 2, 2), np.uint8), np.arange(90) % 3
    split = image_split(
        "toy",
        Images(images, y, 10, {"place": np.arange(90)}),
        Images(images[:30], y[:30]),
        NAMES,
        Subset(STANDARD, 0, ("frog", "cat")),
    )
    assert split.classes == ("frog", "cat")
    assert torch.bincount(split.train.y).tolist() == [5, 5]
    assert torch.bincount(split.test.y).tolist() == [10, 10]
    assert split.train.x.dtype == torch.float32
    assert split.train.y.dtype == torch.int64
    place = split.train.extras["place"]
    assert torch.equal(torch.tensor([2, 0])[split.train.y], place % 3)
    mean, std = (split.extras[key][:, None, None] for key in ("mean", "std"))
    restored = ((split.train.x * std + mean) * 255).round()
    assert torch.equal(restored, torch.from_numpy(images[place.numpy()]).float())

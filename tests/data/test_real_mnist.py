"""MNIST and Fashion-MNIST: the real files, small ones in their format, and damaged ones."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import ntkscope.data
from contracts.dataset import DatasetContract, given
from contracts.real_data import data_root, idx_bytes, needs_data, write_idx_layout
from ntkscope.core.errors import DataCorrupt
from ntkscope.data import mnist

FASHION_FOUND = os.path.isdir(f"{mnist.SYSTEM}/fashion-mnist") or os.path.isdir(
    os.path.join(os.environ.get("NTKSCOPE_DATA", "/nonexistent"), "fashion-mnist")
)
needs_fashion = [
    pytest.mark.data,
    pytest.mark.skipif(not FASHION_FOUND, reason="install dataset-fashion-mnist, or fashion-mnist/ in $NTKSCOPE_DATA"),
]


class SmallFiles(DatasetContract):
    """The contract on small files of random images in the same format; the real files are looked at below."""

    supports_dtype = False
    item_shape = (1, 28, 28)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        root = tmp_path_factory.mktemp("idx")
        write_idx_layout(root / "mnist")
        write_idx_layout(root / "fashion-mnist", train=200, test=50)
        cls.root = str(root)


class TestSmallMnist(SmallFiles):
    name = "mnist"
    options = given(verify=False, normalise="unit")
    random = False
    classes = 10
    sizes = given(train=40, test=20)
    value_range = (0.0, 1.0)
    balance = 0.0


class TestSmallMnist2(SmallFiles):
    name = "mnist2"
    options = given(verify=False, classes=(3, 8))
    random = False
    classes = 2
    sizes = given(train=8, test=4)
    balance = 0.0


class TestSmallFashionMnist(SmallFiles):
    name = "fashion-mnist"
    options = given(verify=False, max_train=100, max_test=20)
    classes = 10
    sizes = given(train=100, test=20)
    balance = 0.0


class TestSmallFmnist2(SmallFiles):
    name = "fmnist2"
    options = given(verify=False, max_train=10)
    classes = 2
    sizes = given(train=10, test=10)
    balance = 0.0


REAL = [
    pytest.param(
        "mnist",
        [5, 0, 4, 1, 9],
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        marks=needs_data,
    ),
    pytest.param("fashion-mnist", [9, 0, 0, 3, 0], [6000] * 10, [1000] * 10, marks=needs_fashion),
]


@pytest.mark.parametrize(("name", "first", "train", "test"), REAL)
def test_the_real_files(name: str, first: list[int], train: list[int], test: list[int]) -> None:
    split = ntkscope.data.load(name)
    assert split.train.x.shape == (60_000, 1, 28, 28)
    assert split.test.x.shape == (10_000, 1, 28, 28)
    assert split.train.y[:5].tolist() == first
    assert torch.bincount(split.train.y).tolist() == train
    assert torch.bincount(split.test.y).tolist() == test
    mean, std = float(split.train.x.double().mean()), float(split.train.x.double().std())
    assert abs(mean) < 1e-3  # the published mean and std have four digits
    assert abs(std - 1) < 1e-3


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        pytest.param("mnist2", ("0", "1"), marks=needs_data),
        pytest.param("fmnist2", ("T-shirt", "trouser"), marks=needs_fashion),
    ],
)
def test_two_classes_of_the_real_files(name: str, classes: tuple[str, str]) -> None:
    split = ntkscope.data.load(name, max_train=500, max_test=200, normalise="unit")
    assert split.fingerprint == ntkscope.data.load(name, max_train=500, max_test=200, normalise="unit").fingerprint
    assert split.classes == classes
    assert (len(split.train), len(split.test)) == (500, 200)
    # easy tasks: the nearest class mean is right far more often than chance, so images and labels belong together
    means = torch.stack([split.train.x[split.train.y == k].mean(dim=0) for k in (0, 1)])
    nearest = torch.cdist(split.test.x.flatten(1), means.flatten(1)).argmin(dim=1)
    assert float((nearest == split.test.y).float().mean()) > 0.85


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "mnist"), ("mnist", "."), ("fashion-mnist", "fashion-mnist")])
def test_small_files_of_the_same_format(root: Path, name: str, folder: str, compressed: bool) -> None:
    write_idx_layout(root / folder, compressed=compressed)
    split = ntkscope.data.load(name, root=str(root), verify=False, classes=(7, 3), normalise=None)
    assert (len(split.train), len(split.test)) == (8, 4)
    assert split.classes[0] == ("7" if name == "mnist" else "sneaker")
    assert split.train.y.tolist() == [1, 0] * 4


def test_debian_package_is_found_last(root: Path) -> None:
    write_idx_layout(Path(mnist.SYSTEM) / "fashion-mnist", train=40)
    assert len(ntkscope.data.load("fashion-mnist", verify=False).train) == 40
    write_idx_layout(root / "fashion-mnist", train=30)
    assert len(ntkscope.data.load("fashion-mnist", root=str(root), verify=False).train) == 30


def test_files_of_another_set_fail_the_checksum(root: Path) -> None:
    write_idx_layout(root / "mnist")
    with pytest.raises(DataCorrupt, match=r"train-images.*expected ba891046e6505d7a.*or pass verify=False"):
        ntkscope.data.load("mnist", root=str(root))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels-idx1-ubyte", np.full(40, 10, np.uint8), r"label 10 at place 0 \(40 such\), expected 0 \.\.\. 9"),
        ("train-labels-idx1-ubyte", np.zeros(39, np.uint8), r"got 39 labels for the 40 images"),
        ("t10k-images-idx3-ubyte", np.zeros((20, 28, 27), np.uint8), r"images are 28x27, expected 28x28"),
        ("t10k-images-idx3-ubyte", np.zeros(20, np.uint8), r"starts with 00 00 08 01, expected 00 00 08 03"),
    ],
)
def test_contents_out_of_range(root: Path, name: str, array: np.ndarray, message: str) -> None:
    write_idx_layout(root / "mnist")
    (root / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    with pytest.raises(DataCorrupt, match=message) as caught:
        ntkscope.data.load("mnist", root=str(root), verify=False)
    assert name in str(caught.value)


@pytest.mark.data
@needs_data[1]
def test_flipped_byte_in_a_copy_of_the_real_files(tmp_path: Path) -> None:
    shutil.copytree(data_root() / "mnist", tmp_path / "mnist", copy_function=os.symlink)
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[123_456] ^= 0x10
    path.unlink()
    path.write_bytes(gzip.compress(content, 1))
    with pytest.raises(DataCorrupt, match=r"t10k-images.*expected 0fa7898d509279e4"):
        ntkscope.data.load("mnist", root=str(tmp_path))

"""CIFAR-10: three layouts on disk give the same bytes; damaged and malicious files are refused."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ntkscope.data
from contracts.dataset import DatasetContract, given
from contracts.real_data import (
    BATCHES,
    data_root,
    needs_data,
    python2_batch,
    small_cifar_records,
    write_cifar_binary,
    write_cifar_pickles,
)
from ntkscope.core import Split
from ntkscope.core.errors import DataCorrupt, DataNotFound, UnsafeData
from ntkscope.data import cifar10


def load(root: Path, **options: object) -> Split:
    return ntkscope.data.load("cifar10", root=str(root), **{"verify": False, **options})


def test_pickles_and_binary_give_the_same_bytes(root: Path) -> None:
    records = small_cifar_records()
    write_cifar_pickles(root / "cifar-10-batches-py", records)
    pickled = load(root)
    write_cifar_binary(root / "cifar-10-batches-bin", records)
    binary = load(root, format="binary")
    assert pickled.fingerprint == binary.fingerprint
    assert pickled.train.x.shape == (150, 3, 32, 32)
    first = records["data_batch_1"][0, 1:].reshape(3, 32, 32)
    mean, std = (torch.tensor(values)[:, None, None] for values in cifar10.STANDARD)
    torch.testing.assert_close(pickled.train.x[0], (torch.from_numpy(first) / 255 - mean) / std)
    assert pickled.train.y.tolist() == [k % 10 for _ in range(5) for k in range(30)]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_rewritten_by_python_3(root: Path, protocol: int) -> None:
    records = small_cifar_records()
    write_cifar_pickles(root / "cifar-10-batches-py", records)
    before = load(root).fingerprint
    for batch, content in records.items():
        rewritten = {"data": content[:, 1:].copy(), "labels": content[:, 0].tolist()}
        (root / "cifar-10-batches-py" / batch).write_bytes(pickle.dumps(rewritten, protocol=protocol))
    assert load(root).fingerprint == before


def test_two_classes(root: Path) -> None:
    write_cifar_binary(root / "cifar10" / "cifar-10-batches-bin", small_cifar_records())
    split = ntkscope.data.load("cifar2", root=str(root), verify=False, max_train=10, max_test=4)
    assert split.name == "cifar2"
    assert split.classes == ("airplane", "automobile")
    assert torch.bincount(split.train.y).tolist() == [5, 5]
    hard = ntkscope.data.load("CIFAR2", root=str(root), verify=False, classes=("cat", "dog"))
    assert hard.classes == ("cat", "dog")
    assert len(hard.train) == 30


def test_missing_names_every_place_and_the_remedy(root: Path) -> None:
    (root / "cifar10").mkdir()
    (root / "cifar10" / "test.webp").touch()
    with pytest.raises(DataNotFound) as caught:
        load(root)
    message = str(caught.value)
    assert f"{root / 'cifar10'} (lacks train_1.webp, train_2.webp" in message
    assert "labels.npz of the mosaic layout" in message
    assert f"{root / 'cifar-10-batches-py'} (no such folder)" in message
    assert f"{root} (holds none of its files)" in message
    assert "cifar-10-python.tar.gz" in message
    with pytest.raises(DataNotFound, match=r"CIFAR-10 \(binary\) was not found"):
        load(root, format="binary")


def test_malicious_batch_is_refused_and_leaves_no_trace(root: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {root / 'ran'}",)

    write_cifar_pickles(root / "cifar-10-batches-py", small_cifar_records())
    content = {b"labels": [Evil()] * 30, b"data": np.zeros((30, 3072), np.uint8)}
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UnsafeData, match=r"test_batch was refused and nothing in it ran: (posix|os|nt)\.system"):
        load(root)
    assert not (root / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            python2_batch([0, 257], np.zeros((2, 3072), np.uint8)),
            r"label 257 at place 1 \(1 such\), expected 0 \.\.\. 9",
        ),
        (python2_batch([0, 1], np.zeros((2, 3071), np.uint8)), r"'data' is an array uint8\(2, 3071\), expected"),
        (python2_batch([0, 1, 2], np.zeros((2, 3072), np.uint8)), r"'labels' is a list of 3, expected a list of 2"),
        (pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}, 2), r"'data' is an array float64\(2, 3072\)"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]}, 2), r"label -1 at place 1"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, "1"]}, 2), r"a list of 2 integers"),
        (pickle.dumps([1, 2], 2), r"'data' is a NoneType"),
        (python2_batch([0, 1], np.zeros((2, 3072), np.uint8))[:-100], r"not a complete pickle"),
    ],
)
def test_damaged_pickles(root: Path, content: bytes, message: str) -> None:
    write_cifar_pickles(root / "cifar-10-batches-py", small_cifar_records())
    (root / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(DataCorrupt, match=message) as caught:
        load(root)
    assert "data_batch_2" in str(caught.value)


def test_damaged_binary(root: Path) -> None:
    records = small_cifar_records()
    write_cifar_binary(root / "cifar-10-batches-bin", records)
    path = root / "cifar-10-batches-bin" / "data_batch_4.bin"
    path.write_bytes(records["data_batch_4"].tobytes()[:-1])
    with pytest.raises(
        DataCorrupt, match=r"found 92,189 bytes, expected 30,730,000 \(10,000 records of 3,073\).*truncated"
    ):
        load(root)
    records["data_batch_4"][7, 0] = 200
    path.write_bytes(records["data_batch_4"].tobytes())
    with pytest.raises(DataCorrupt, match=r"data_batch_4\.bin: label 200 at place 7 \(1 such\), expected 0 \.\.\. 9"):
        load(root)
    records["data_batch_4"][7, 0] = 7
    path.write_bytes(records["data_batch_4"].tobytes())
    assert len(load(root).train) == 150
    with pytest.raises(DataCorrupt, match=r"binary, data_batch_1\): the sha256.*expected cee916563c9f80d8"):
        load(root, verify=True)


class TestMosaics:
    @pytest.fixture(scope="class")
    @classmethod
    def picture(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, Path]:
        """A mosaic that is black but for its first image."""
        mosaic = np.zeros((3200, 3200, 3), np.uint8)
        mosaic[:32, :32] = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
        path = tmp_path_factory.mktemp("mosaic") / "mosaic.webp"
        Image.fromarray(mosaic).save(path, lossless=True, method=0, quality=0)
        return mosaic, path

    @pytest.fixture
    def folder(self, root: Path, picture: tuple[np.ndarray, Path]) -> Path:
        folder = root / "cifar10"
        folder.mkdir()
        for name in ("test", *(f"train_{k}" for k in range(1, 6))):
            shutil.copy(picture[1], folder / f"{name}.webp")
        labels = (np.arange(50_000) % 10).astype(np.uint8)
        np.savez(folder / "labels.npz", train=labels, test=labels[:10_000])
        return folder

    def test_reads_them(self, folder: Path, picture: tuple[np.ndarray, Path]) -> None:
        records = cifar10.LAYOUTS["mosaic"].read(folder, "data_batch_3")
        assert records.shape == (10_000, 3073)
        assert np.array_equal(records[0, 1:].reshape(3, 32, 32), picture[0][:32, :32].transpose(2, 0, 1))
        assert not records[1:, 1:].any()
        assert records[:12, 0].tolist() == [*range(10), 0, 1]

    def test_damaged(self, folder: Path) -> None:
        path = folder / "train_2.webp"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataCorrupt, match=rf"train_2\.webp: {len(whole) // 2:,} bytes are not a complete WebP"):
            cifar10.LAYOUTS["mosaic"].read(folder, "data_batch_2")
        Image.new("RGB", (3200, 3199)).save(path, lossless=True, method=0)
        with pytest.raises(DataCorrupt, match=r"the mosaic is 3200x3199 pixels, expected 3200x3200"):
            cifar10.LAYOUTS["mosaic"].read(folder, "data_batch_2")


class TestSmallCifar10(DatasetContract):
    """The contract on small files of random images in the official binary layout."""

    name = "cifar10"
    options = given(verify=False, format="binary", max_train=100, normalise="imagenet")
    supports_dtype = False
    item_shape = (3, 32, 32)
    classes = 10
    sizes = given(train=100, test=30)
    value_range = (-2.1180, 2.6401)
    balance = 0.0

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.root = str(tmp_path_factory.mktemp("cifar"))
        write_cifar_binary(Path(cls.root) / "cifar-10-batches-bin", small_cifar_records())


class TestSmallCifar2(TestSmallCifar10):
    """Two of its classes, on the same files."""

    name = "cifar2"
    options = given(verify=False, format="binary", max_train=20, normalise="imagenet")
    classes = 2
    sizes = given(train=20, test=6)


class TestTheRealMosaics:
    pytestmark = needs_data

    @pytest.fixture(scope="class")
    @classmethod
    def records(cls) -> dict[str, np.ndarray]:
        return {batch: cifar10.LAYOUTS["mosaic"].read(data_root() / "cifar10", batch) for batch in BATCHES}

    @pytest.fixture(scope="class")
    @classmethod
    def official(cls, records: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The official binary files, written from the mosaics."""
        root = tmp_path_factory.mktemp("official")
        write_cifar_binary(root / "cifar-10-batches-bin", records)
        return root

    def test_are_the_official_data_byte_for_byte(self, records: dict[str, np.ndarray]) -> None:
        """The checksums are those of the official data_batch_1.bin ... test_batch.bin."""
        found = {batch: hashlib.sha256(content.tobytes()).hexdigest() for batch, content in records.items()}
        assert found == cifar10.SHA256

    @pytest.mark.nightly
    def test_everything(self, official: Path) -> None:
        split = ntkscope.data.load("cifar10", root=str(official), format="binary", verify=True)
        assert split.train.x.shape == (50_000, 3, 32, 32)
        assert split.test.x.shape == (10_000, 3, 32, 32)
        assert torch.bincount(split.train.y).tolist() == [5000] * 10
        assert torch.bincount(split.test.y).tolist() == [1000] * 10
        assert split.train.x.mean(dim=(0, 2, 3)).abs().max() < 1e-3  # the constants have four digits
        assert (split.train.x.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-3

    @pytest.mark.nightly
    def test_all_three_layouts_have_one_fingerprint(
        self, records: dict[str, np.ndarray], official: Path, tmp_path: Path
    ) -> None:
        write_cifar_pickles(tmp_path / "cifar-10-batches-py", records)
        roots = {"mosaic": data_root(), "binary": official, "pickle": tmp_path}
        found = {f: ntkscope.data.load("cifar10", root=str(roots[f]), format=f).fingerprint for f in roots}
        assert len(set(found.values())) == 1

    def test_flipped_byte_in_a_mosaic(self, tmp_path: Path) -> None:
        folder = tmp_path / "cifar10"
        folder.mkdir()
        for path in (data_root() / "cifar10").iterdir():
            (folder / path.name).symlink_to(path)
        content = bytearray((folder / "train_1.webp").read_bytes())
        content[len(content) // 2] ^= 0x01
        (folder / "train_1.webp").unlink()
        (folder / "train_1.webp").write_bytes(content)
        with pytest.raises(DataCorrupt, match=r"train_1\.webp|data_batch_1\): the sha256"):
            ntkscope.data.load("cifar10", root=str(tmp_path))

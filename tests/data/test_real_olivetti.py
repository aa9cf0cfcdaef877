"""Olivetti faces: people kept apart, glasses on both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ntkscope.data
from contracts.dataset import DatasetContract, given
from contracts.real_data import data_root, needs_data
from ntkscope.core import Split, UsageError
from ntkscope.core.errors import DataCorrupt


def write_faces(root: Path, **changes: np.ndarray) -> None:
    """400 random images; eight people wear glasses always, seven in half of their pictures."""
    person = np.repeat(np.arange(40), 10).astype(np.uint8)
    images = np.random.default_rng(0).integers(0, 256, (400, 64, 64), np.uint8)
    glasses = ((person < 8) | ((person < 15) & (np.arange(400) % 2 == 0))).astype(np.uint8)
    (root / "olivetti").mkdir(parents=True, exist_ok=True)
    arrays = {"images": images, "person": person, "glasses": glasses, **changes}
    np.savez(root / "olivetti" / "olivetti_faces_glasses.npz", **arrays)


class TestOlivetti(DatasetContract):
    name = "olivetti"
    options = given(verify=False)
    supports_dtype = False
    item_shape = (1, 64, 64)
    classes = 2
    sizes = given(train=300, test=100)
    balance = 0.25

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.root = str(tmp_path_factory.mktemp("faces"))
        write_faces(Path(cls.root))

    def check_defining_property(self, split: Split) -> None:
        train, test = (set(part.extras["person"].tolist()) for part in (split.train, split.test))
        assert train | test == set(range(40))
        assert not train & test
        for part in (split.train, split.test):
            assert torch.equal(part.y, part.extras["glasses"])
            share = float(part.y.double().mean())
            assert 0.2 < share < 0.4  # people are drawn from each kind


class TestRealOlivetti:
    pytestmark = needs_data

    def test_random_split_leaks_people(self) -> None:
        split = ntkscope.data.load("olivetti", split="random")
        assert (len(split.train), len(split.test)) == (300, 100)
        assert int(split.train.y.sum() + split.test.y.sum()) == 119
        assert set(split.train.extras["person"].tolist()) & set(split.test.extras["person"].tolist())
        x = torch.cat([split.train.x, split.test.x]).double()
        assert abs(float(x.mean())) < 1e-3  # four digits in the constants
        assert abs(float(x.std()) - 1) < 1e-3

    def test_persons_as_classes(self) -> None:
        split = ntkscope.data.load("olivetti", target="person", split="random", test_fraction=0.3)
        assert torch.bincount(split.test.y).tolist() == [3] * 40
        assert torch.bincount(split.train.y).tolist() == [7] * 40
        assert len(split.classes) == 40

    def test_changed_pixel(self, tmp_path: Path) -> None:
        with np.load(data_root() / "olivetti" / "olivetti_faces_glasses.npz") as archive:
            arrays = dict(archive)
        arrays["images"][5, 6, 7] ^= 1
        write_faces(tmp_path, **arrays)
        with pytest.raises(DataCorrupt, match=r"olivetti_faces_glasses\.npz.*expected 7c2717c6cee78d60"):
            ntkscope.data.load("olivetti", root=str(tmp_path))


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.9])
def test_fraction(tmp_path: Path, fraction: float) -> None:
    write_faces(tmp_path)
    for split in ("person", "random"):
        made = ntkscope.data.load("olivetti", root=str(tmp_path), verify=False, test_fraction=fraction, split=split)
        assert abs(len(made.test) / 400 - fraction) < 0.05
        assert len(made.train) + len(made.test) == 400
        assert 0 < int(made.train.y.sum()) < len(made.train)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"glasses": np.full(400, 2, np.uint8)}, r"glasses is 2 at place 0, expected 0 \.\.\. 1"),
        ({"person": np.full(400, 40, np.uint8)}, r"person is 40 at place 0, expected 0 \.\.\. 39"),
    ],
)
def test_damaged(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    write_faces(tmp_path, **changes)
    with pytest.raises(DataCorrupt, match=message):
        ntkscope.data.load("olivetti", root=str(tmp_path), verify=False)


def test_people_cannot_be_classes_when_none_is_on_both_sides() -> None:
    with pytest.raises(UsageError, match=r"tests on people never seen; pass split='random'"):
        ntkscope.data.load("olivetti", target="person")

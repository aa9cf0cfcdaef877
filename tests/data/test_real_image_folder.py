"""Image folders: order, sizes, subsets; bombs and broken images refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ntkscope.data
from contracts.dataset import DatasetContract, given
from ntkscope.core import Split, UsageError
from ntkscope.core.errors import DataCorrupt, DataNotFound, MemoryBudgetError, UnknownName
from ntkscope.data.image_folder import read_image

COLOURS = {"boa": (255, 0, 0), "cobra": (0, 255, 0), "viper": (0, 0, 255)}


def write_images(
    root: Path, train: int = 6, test: int = 3, size: tuple[int, int] = (8, 8), held_out: str = "test"
) -> Path:
    """One-coloured images, a colour a class, in three formats in turn; the blue of each says which it is."""
    for part, n in (("train", train), (held_out, test)):
        for name, colour in COLOURS.items():
            folder = root / part / name
            folder.mkdir(parents=True, exist_ok=True)
            for k in range(n):
                suffix = ("png", "webp", "JPG")[k % 3]
                image = Image.new("RGB", size, colour)
                image.save(folder / f"{k:02d}.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
            (folder / "notes.txt").write_text("no image")
            (folder / ".hidden.png").write_bytes(b"no image")
    return root


def load(root: Path, **options: object) -> Split:
    return ntkscope.data.load("image-folder", root=str(root), **options)


class TestImageFolder(DatasetContract):
    name = "image-folder"
    options = given(max_per_class=4, image_size=6, normalise="unit")
    supports_dtype = False
    item_shape = (3, 6, 6)
    classes = 3
    sizes = given(train=12, test=9)
    value_range = (0.0, 1.0)
    balance = 0.0

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        root = write_images(tmp_path_factory.mktemp("images"))
        random = np.random.default_rng(0)
        for path in sorted(root.glob("train/*/*.png")):  # so that another choice is other data
            Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
        cls.root = str(root)

    def check_defining_property(self, split: Split) -> None:
        assert split.classes == ("boa", "cobra", "viper")
        channel = split.test.x.mean(dim=(2, 3)).argmax(dim=1)  # each class has its colour
        assert torch.equal(channel, split.test.y)


def test_everything_in_order_of_names(tmp_path: Path) -> None:
    write_images(tmp_path)
    split = load(tmp_path, normalise=None)
    assert split.train.x.shape == (18, 3, 8, 8)
    assert split.train.y.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    lossless = [k for k in range(6) if k % 3 < 2]
    assert split.train.x[lossless, :, 0, 0].tolist() == [[255.0, 0.0, 0.0]] * 4


def test_classes_and_default_normalisation(tmp_path: Path) -> None:
    write_images(tmp_path, train=1, test=1)
    split = load(tmp_path, classes=("viper", "boa"))
    assert split.classes == ("viper", "boa")
    assert sorted(split.train.y.tolist()) == [0, 1]
    red = split.train.x[split.train.y == 1][0, :, 0, 0]
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225]
    torch.testing.assert_close(red, torch.tensor(expected))
    with pytest.raises(UnknownName, match=r"unknown class 'vipr'; did you mean 'viper'\?"):
        load(tmp_path, classes=("vipr", "boa"))


@pytest.mark.parametrize("held_out", ["test", "val", "validation", "valid", "Test"])
def test_names_of_the_test_folder(tmp_path: Path, held_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "snakes", held_out=held_out, train=2, test=1)
    monkeypatch.setenv("NTKSCOPE_DATA", str(tmp_path))
    split = ntkscope.data.load("image-folder", folder="snakes")
    assert (len(split.train), len(split.test)) == (6, 3)
    assert split.options["parts"] == f"train/ and {held_out}/"


def test_images_that_do_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, train=1, test=1)
    monkeypatch.setattr("os.sysconf", lambda name: 40)
    with pytest.raises(MemoryBudgetError, match=r"3 images of 8x8 need .* GiB, and the machine has"):
        load(tmp_path)


def test_crop_keeps_the_middle_and_stretch_keeps_all(tmp_path: Path) -> None:
    pixels = np.zeros((4, 12, 3), np.uint8)
    pixels[:, 4:8] = 255
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert (read_image(tmp_path / "x.png", 4, "crop") == 255).all()
    stretched = read_image(tmp_path / "x.png", 12, "stretch")
    assert stretched.shape == (3, 12, 12)
    assert stretched[:, :, 0].max() == 0
    assert read_image(tmp_path / "x.png", None, "crop").shape == (3, 4, 12)
    assert read_image(tmp_path / "x.png", 7, "crop").shape == (3, 7, 7)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_other_eight_bit_modes(tmp_path: Path, mode: str) -> None:
    Image.new("L", (3, 2), 255).convert(mode).save(tmp_path / "x.png")
    assert (read_image(tmp_path / "x.png", None, "crop") == 255).all()


def test_different_sizes_need_image_size(tmp_path: Path) -> None:
    write_images(tmp_path)
    Image.new("RGB", (9, 7)).save(tmp_path / "train" / "cobra" / "03.png")
    with pytest.raises(UsageError, match=r"03\.png is 9x7 and .*00\.png is 8x8; pass image_size="):
        load(tmp_path)
    assert load(tmp_path, image_size=5).train.x.shape == (18, 3, 5, 5)


@pytest.mark.parametrize("below", [".", "train"])
def test_class_folders_alone_are_split(tmp_path: Path, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "NTKSCOPE_DATA", str(write_images(tmp_path / "other", train=1, test=1))
    )  # is not what root= means
    for name, grey in (("dark", 0), ("light", 255)):
        folder = tmp_path / "mine" / below / name
        folder.mkdir(parents=True)
        for k in range(10):
            Image.new("L", (4, 4), grey).save(folder / f"{k}.png")
    split = load(tmp_path / "mine", channels=1)
    assert (split.train.x.shape, split.test.x.shape) == ((16, 1, 4, 4), (4, 1, 4, 4))
    for part in (split.train, split.test):
        assert torch.equal(part.x[:, 0, 0, 0].long(), part.y)  # in [0, 1]
    names = [*split.train.extras["path"], *split.test.extras["path"]]
    assert len({*names}) == 20
    assert split.options["parts"].endswith("CLASS/, of which 20 % were drawn as test items (seed 0)")
    assert load(tmp_path / "mine", channels=1, test_fraction=0.5, seed=3).test.y.tolist() == [0] * 5 + [1] * 5


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((3, 2), 40_000, np.uint16)).save(tmp_path / "x.png")
    with pytest.raises(DataCorrupt, match=r"mode I;16, expected eight bits .* convert the images as in training"):
        read_image(tmp_path / "x.png", None, "crop")


def test_folders_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NTKSCOPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataNotFound, match=r"lacks a folder train\).*; make the folders train/CLASS/"):
        load(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataNotFound, match=r"lacks a folder test or testing or validation or valid"):
        load(tmp_path)
    (tmp_path / "test").mkdir()
    with pytest.raises(DataCorrupt, match=r"train: no class folder in it"):
        load(tmp_path)
    write_images(tmp_path, train=1, test=1)
    (tmp_path / "test" / "whale").mkdir()
    with pytest.raises(DataCorrupt, match=r"whale: no image in this class folder"):
        load(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "test" / "whale" / "a.png")
    with pytest.raises(
        DataCorrupt, match=r"class 'whale' is not among those of the training images: boa, cobra, viper"
    ):
        load(tmp_path)

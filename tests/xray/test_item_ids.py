"""Ids of items come from where data sets keep them, in the order of the items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset

import ntkscope as ns
from ntkscope.core import Part
from ntkscope.xray.items import collect_both, ids_of
from ntkscope.xray.sections import kernel
from xray.small import blobs, network, only


class Folder(Dataset[Any]):
    """As torchvision's ImageFolder."""

    def __init__(self, n: int = 4) -> None:
        self.samples = [(f"c/{i}.png", i % 2) for i in range(n)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)]), self.samples[index][1]


def test_of_data_sets_subsets_and_loaders() -> None:
    names = tuple(f"c/{i}.png" for i in range(4))
    assert ids_of(Folder(), 4) == names
    assert ids_of(Subset(Folder(), [2, 0]), 2) == ("c/2.png", "c/0.png")
    assert ids_of(DataLoader(Folder(), batch_size=3), 4) == names
    assert ids_of(DataLoader(Folder(), batch_size=3, sampler=[3, 1, 0, 2]), 4) is None  # another order


@pytest.mark.parametrize("extra", [["a", "b"], [Path("a"), Path("b")], torch.tensor([7, 8]), [("a", 1), ("b", 0)]])
def test_of_a_part(extra: Any) -> None:
    found = ids_of(Part(torch.zeros(2, 1), torch.zeros(2), {"path": extra}), 2)
    assert found in (("a", "b"), ("7", "8"))


@pytest.mark.parametrize("wrong", [[1.5, 2.5], [None, "a"], torch.zeros(2, 2)])
def test_what_is_no_id_is_ignored(wrong: Any) -> None:
    assert ids_of(Part(torch.zeros(2, 1), torch.zeros(2), {"id": wrong}), 2) is None


def test_they_follow_the_items_into_the_record(tmp_path: Path) -> None:
    train, test = blobs()
    named = Part(train.x, train.y, {"id": [f"item {i}" for i in range(len(train))]})
    items, _ = collect_both(named, test)
    assert items.take(torch.tensor([5, 2])).ids == ("item 5", "item 2")
    options: dict[str, Any] = {"kernels": ["ck"], "max_train": 30, "untrained": True, "progress": False}
    with only(kernel.SECTION):
        record = ns.xray(network(), named, test, tmp_path, **options)
    originals = [int(i) for i in record.arrays["originals.train"]]
    assert list(record.metrics["ids"]["train"]) == [f"item {i}" for i in originals]
    assert record.metrics["kernel_names"]["trntk"] == "trace NTK, normalised"


def test_files_of_an_image_folder_are_their_ids(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("test", 2)):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                image = Image.fromarray(np.full((4, 4, 3), 40 * i, dtype=np.uint8))
                image.save(tmp_path / part / name / f"{name[0]}{i}.png")
    split = ns.data.load("image-folder", root=tmp_path)
    train, test = collect_both(split.train, split.test)
    assert train.ids == tuple(f"train/{name}/{name[0]}{i}.png" for name in ("cat", "dog") for i in range(3))
    assert test.take(torch.tensor([3])).ids == ("test/dog/d1.png",)
    few = ns.data.load("image-folder", root=tmp_path, classes=["dog"], max_per_class=1)
    (path,) = few.train.extras["path"]
    assert path.startswith("train/dog/")
    assert float(few.train.x[0].sum()) == pytest.approx(float(split.train.x[train.ids.index(path)].sum()))

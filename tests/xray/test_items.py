"""Items: every form in which people hold labelled data gives the same inputs and labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import ntkscope as ns
from ntkscope.core import Part, Split, UsageError
from ntkscope.xray.items import Items, collect_both, fitted, ids_of
from ntkscope.xray.sections import kernel
from xray.small import blobs, network, only

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Named(Dataset):
    """Items as mappings, as Hugging Face data sets give them."""

    def __init__(self, lengths: list[int] | None = None) -> None:
        self.lengths = lengths or [3] * 6

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> dict[str, Any]:
        ids = torch.arange(1, self.lengths[i] + 1)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(Y[i])}


def one(data: Any, **options: Any) -> Items:
    return collect_both(data, data, **options)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Part(X, Y),
        lambda: (X, Y),
        lambda: (X, Y.float()),
        lambda: (X, Y[:, None]),
        lambda: TensorDataset(X, Y),
        lambda: DataLoader(TensorDataset(X, Y), batch_size=4),
        lambda: [X, Y],
        lambda: (X.numpy(), Y.numpy()),
        lambda: (X.numpy().astype(np.float64), Y.numpy()),
        lambda: DataLoader(TensorDataset(X.reshape(3, 2, 2), Y.reshape(3, 2)), batch_size=None),
    ],
)
def test_every_form_is_the_same_data_in_the_same_order(make: Callable[[], Any]) -> None:
    items = one(make())
    assert torch.equal(items.x, X)
    assert torch.equal(items.y, Y)
    assert items.original.tolist() == list(range(6))


def test_mappings_keep_their_names() -> None:
    for data in (Named(), DataLoader(Named(), batch_size=4), DataLoader(Named(), batch_size=2)):
        items = one(data)
        assert set(items.x) == {"input_ids", "attention_mask"}
        assert items.x["input_ids"].shape == (6, 3)
        assert torch.equal(items.y, Y)
    whole = one({"input_ids": X.long(), "labels": Y})
    assert torch.equal(whole.x["input_ids"], X.long())


def test_tokens_of_several_lengths_are_padded_with_zeros_on_both_sides() -> None:
    train, test = collect_both(DataLoader(Named([1, 2, 3, 1, 2, 3]), batch_size=1), DataLoader(Named(), batch_size=6))
    longer, _ = collect_both(Named(), Named([5] * 6))
    assert train.x["input_ids"].tolist()[0] == [1, 0, 0]
    assert train.x["attention_mask"].sum(1).tolist() == [1, 2, 3, 1, 2, 3]
    assert test.x["input_ids"].shape == (6, 3)
    assert longer.x["input_ids"].shape == (6, 5)


def test_texts_are_tokenised_together() -> None:
    seen: list[list[str]] = []

    def tokenizer(texts: list[str]) -> dict[str, torch.Tensor]:
        seen.append(texts)
        longest = max(map(len, texts))
        return {"input_ids": torch.tensor([[ord(c) for c in text.ljust(longest)] for text in texts])}

    train, test = Part(["a", "bb"], torch.tensor([0, 1])), Part(["dddd"], torch.tensor([1]))
    first, second = collect_both(train, test, tokenizer)
    assert seen == [["a", "bb", "dddd"]]
    assert first.x["input_ids"].shape == (2, 4)
    assert (first.texts, second.texts) == (("a", "bb"), ("dddd",))
    assert first.kind == "text"
    assert first.take(torch.tensor([1])).texts == ("bb",)
    with pytest.raises(UsageError, match=r"got no tokenizer.*--tokenizer"):
        collect_both(train, test)


def test_what_forward_does_not_take_of_a_tokenizers_inputs_is_left_out_and_said_once() -> None:
    def tokenizer(texts: list[str]) -> dict[str, torch.Tensor]:
        return {name: torch.ones(len(texts), 2) for name in ("input", "token_type_ids")}

    said: list[str] = []
    tokens = fitted(tokenizer, nn.Linear(2, 2), said.append)
    data = Part(["a", "b"], torch.tensor([0, 1]))
    for _ in range(2):
        train, _ = collect_both(data, data, tokens)
        assert list(train.x) == ["input"]
    assert said == ["of the tokenizer's inputs the network does not take token_type_ids: left out"]


def test_kinds() -> None:
    assert one((torch.zeros(6, 3, 4, 4), Y)).kind == "image"
    assert one((torch.zeros(6, 7, 4, 4), Y)).kind == "vector"
    assert one((X, Y)).kind == "vector"


def test_signs_are_two_classes() -> None:
    signs = torch.tensor([-1, 1, 1, -1, 1, 1])
    assert one((X, signs)).y.tolist() == [0, 1, 1, 0, 1, 1]
    train, test = collect_both((X, signs), (X[:1], signs[:1]))
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 1, 0, 1, 1], [0])


@pytest.mark.parametrize("subset", [False, True])
def test_a_loader_over_a_part_keeps_to_it_and_its_order(subset: bool) -> None:
    """Training and held-out items are often two samplers over one data set; rows are what the loader gives, as for kernels."""
    data = TensorDataset(X, Y)
    parts = [
        DataLoader(Subset(data, rows), batch_size=2) if subset else DataLoader(data, batch_size=2, sampler=rows)
        for rows in ([4, 0, 1, 2], [3, 5])
    ]
    first, second = collect_both(*parts)
    assert torch.equal(first.x, X[[4, 0, 1, 2]])
    assert torch.equal(second.x, X[[3, 5]])
    assert second.y.tolist() == [0, 2]


SHUFFLING: dict[str, Callable[[Dataset], DataLoader]] = {
    "shuffle": lambda data: DataLoader(data, batch_size=4, shuffle=True),
    "random sampler": lambda data: DataLoader(data, batch_size=4, sampler=RandomSampler(data)),
    "weighted": lambda data: DataLoader(data, batch_size=4, sampler=WeightedRandomSampler([1.0] * 6, 6)),
    "subset": lambda data: DataLoader(data, batch_size=2, sampler=SubsetRandomSampler(range(4))),
    "batches": lambda data: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 2, False)),
    "distributed": lambda data: DataLoader(data, sampler=DistributedSampler(data, num_replicas=1, rank=0)),
}


@pytest.mark.parametrize("make", SHUFFLING.values(), ids=SHUFFLING)
def test_a_shuffling_loader_is_refused_by_kernels_and_the_x_ray_in_the_same_words(make: Callable) -> None:
    remedy = r"is a shuffling DataLoader, so its rows would have no fixed meaning; .* pass loader\.dataset, or .*Subset"
    loader = make(TensorDataset(X, Y))
    with pytest.raises(UsageError, match=f"^train {remedy}"):
        collect_both(loader, (X, Y))
    with pytest.raises(UsageError, match=f"^test {remedy}"):
        collect_both((X, Y), loader)
    with pytest.raises(UsageError, match=f"^the input {remedy}"):
        ns.kernel("trntk", nn.Linear(2, 3), loader)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"input": x}])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_kernels_take_arrays(wrap: Callable, kind: type) -> None:
    model = nn.Linear(2, 3)
    assert torch.equal(
        ns.kernel("trntk", model, wrap(X.numpy().astype(kind))).dense(), ns.kernel("trntk", model, X).dense()
    )


def test_an_endless_sampler_is_refused() -> None:
    class Forever(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return itertools.cycle(range(6))

    with pytest.raises(UsageError, match="does not end"):
        one(DataLoader(TensorDataset(X, Y), batch_size=2, sampler=Forever()))


@pytest.mark.parametrize("keys", [None, ("text", "label")])
def test_loaders_of_texts(keys: tuple[str, str] | None) -> None:
    pairs = [("a", 0), ("bb", 1), ("c", 1)]
    items: Any = pairs if keys is None else [dict(zip(keys, pair)) for pair in pairs]
    made = one(DataLoader(items, batch_size=2), tokenizer=lambda texts: torch.tensor([[len(t)] for t in texts]))
    assert made.texts == ("a", "bb", "c")
    assert made.x.tolist() == [[1], [2], [1]]
    assert made.y.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Split(Part(X, Y), Part(X, Y)), "pass split.train"),
        ((X, torch.rand(6, 2, 2)), r"expected real numbers, \(n,\) or \(n, outputs\)"),
        ((X, torch.eye(6)), "expected one class number per item"),
        ({"input_ids": X}, "expected a label among them"),
        (3, "is a int"),
        ((X, Y[:4]), "6 inputs and 4 labels"),
        ((X[:0], Y[:0]), "train is empty"),
        ((X, ["a", "b"] * 3), "that are not numbers"),
        ((X / X, Y), "NaN or infinity in 1 items, the first at index 0"),
    ],
)
def test_refusals(data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        one(data)


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

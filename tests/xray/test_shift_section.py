"""Shift on the page: samples beside the training items on fixed vectors, memorisation apart from it, items to compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, Record, UsageError, generator
from ntkscope.core.errors import RecordError
from ntkscope.data.transforms.translation import shift_images
from ntkscope.xray.result import Result
from ntkscope.xray.sections import shift
from ntkscope.xray.sections.shift import initial_vectors, input_vectors
from xray.small import blobs, only, trained


def read(record: Record) -> shift.Shifts:
    found: Result | None = shift.SECTION.read(record.metrics)
    assert isinstance(found, shift.Shifts)
    return found


@pytest.fixture(scope="module")
def network() -> Any:
    train, test = blobs(60)
    return train, test, *trained(train)


class TestCompared:
    @pytest.fixture(autouse=True)
    def alone(self) -> Iterator[None]:
        with only(shift.SECTION):
            yield

    def test_other_items_are_compared_with_the_training_items(self, network: Any, tmp_path: Path) -> None:
        train, test, initial, model = network
        options: dict[str, Any] = {"kernels": ["ck"], "progress": False, "initial": initial}
        record = ns.xray(model, train, test, tmp_path / "moved", compare=test.x + 2, **options)
        known, other = read(record).judged
        assert (known.other, known.verdict) == ("test items", "no shift found")
        assert (other.other, other.verdict, other.items) == ("items to compare", "shift", 60)
        assert [seen.embedding for seen in other.seen] == ["inputs", "initial network"]
        assert np.asarray(record.arrays["shift.plane.1.0"]).shape == (120, 2)
        with pytest.raises(RecordError, match="compare"):
            ns.xray(model, train, test, tmp_path / "moved", compare=test.x, **options)
        assert "items to compare" in ns.report.write_page(record.folder).read_text()

    def test_without_the_initial_network_the_inputs_decide(self, network: Any, tmp_path: Path) -> None:
        train, test, _, model = network
        moved = Part(test.x + 2, test.y)
        found = read(ns.xray(model, train, moved, tmp_path, kernels=["ck"], progress=False, compare=(train.x, train.y)))
        assert [judged.verdict for judged in found.judged] == ["shift", "no shift found"]
        assert [seen.embedding for seen in found.judged[0].seen] == ["inputs"]

    def test_what_cannot_be_compared(self, network: Any, tmp_path: Path) -> None:
        train, test, _, model = network
        for wrong, words in ((torch.zeros(30, 4), "expected the same"), (torch.full((30, 5), torch.nan), "NaN")):
            with pytest.raises(UsageError, match=words):
                ns.xray(model, train, test, tmp_path, compare=wrong, progress=False)
        few = read(ns.xray(model, train, test, tmp_path, compare=test.x[:5], kernels=["ck"], progress=False))
        assert few.judged[1].verdict == "too few items"


class TestFixedVectors:
    def test_tokens_are_counted_without_padding(self) -> None:
        ids, mask = torch.tensor([[5, 5, 7], [5, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
        found = input_vectors({"input_ids": ids, "attention_mask": mask})
        assert (found[0, 5], found[0, 7], found[1, 5], found[1, 0]) == (2, 1, 1, 0)
        wide = input_vectors({"input_ids": ids + 30_000, "attention_mask": mask})
        assert wide.sum(1).tolist() == [3, 1]

    def test_wide_inputs_keep_their_distances(self) -> None:
        """Sums with random signs: squared distances to a tenth (5,000 numbers in 4,096 sums)."""
        x = torch.randn(10, 5000, generator=generator(0, "test", "wide"))
        found = input_vectors(x)
        assert found.shape == (10, 4096)
        ratio = np.square(found[:5] - found[5:]).sum(1) / (x[:5] - x[5:]).double().square().sum(1).numpy()
        assert np.abs(ratio - 1).max() < 0.1

    def test_initial_network(self) -> None:
        model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
        x = torch.randn(6, 1, 2, 2, generator=generator(0, "test"))
        expected = model[0](x).mean((2, 3)).detach().double().numpy()
        np.testing.assert_allclose(initial_vectors(model, x, None), expected, rtol=1e-5)
        with pytest.raises(UsageError, match="neither numbers nor tokens"):
            input_vectors(torch.zeros(4, dtype=torch.int64))


def memorising(seed: int, noise: float, moved: int, folder: Path) -> shift.Shifts:
    """A network that knows its training items by heart, a share of their labels drawn at random, and its X-ray."""
    whole = ns.data.load("digits")
    x, y = torch.cat([whole.train.x, whole.test.x]), torch.cat([whole.train.y, whole.test.y])
    draw = generator(seed, "test", "memorising")
    order = torch.randperm(len(x), generator=draw)
    rows, held = order[:600], order[600:1000]
    labels = y[rows].clone()
    wrong = torch.rand(len(rows), generator=draw) < noise
    labels[wrong] = (labels[wrong] + torch.randint(1, 10, (int(wrong.sum()),), generator=draw)) % 10
    train, test = Part(x[rows], labels), Part(shift_images(x[held], torch.tensor([[0, moved]]).expand(400, 2)), y[held])
    model = nn.Sequential(
        nn.Flatten(), ns.models.build("mlp", in_features=64, classes=10, widths=256, depth=1, seed=seed)
    )
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    ns.training.fit(model, train, lr=1e-2, optimizer="adam", steps=250, measure=False).final()
    with only(shift.SECTION):
        record = ns.xray(model, train, test, folder, initial=initial, kernels=["ck"], progress=False, seed=seed)
    return read(record)


@pytest.mark.nightly
def test_memorisation_is_no_shift(tmp_path: Path) -> None:
    """20 splits of the digits, 40 % of the training labels wrong and learned by heart: memorised in at least 18, a shift in at
    most 3."""
    found = [memorising(seed, 0.4, 0, tmp_path / str(seed)) for seed in range(20)]
    assert all(each.memorisation is not None and each.memorisation.train > 0.99 for each in found)
    assert sum(each.memorisation.verdict == shift.MEMORISED for each in found) >= 18
    assert sum(each.judged[0].verdict == "shift" for each in found) <= 3


@pytest.mark.nightly
def test_test_items_moved_by_a_pixel_are_shifted(tmp_path: Path) -> None:
    found = [memorising(seed, 0.0, 1, tmp_path / str(seed)) for seed in range(20)]
    assert sum(each.judged[0].verdict == "shift" for each in found) >= 18

"""The probe in every form, always the same items in the same order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ntkscope.core import Part, UsageError
from ntkscope.tracking.probe import as_probe


def test_every_form_gives_the_same_items() -> None:
    x, y = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 4
    first = as_probe((x, y), 0)
    assert first.y is not None
    assert sorted(first.y.tolist()) == sorted(y.tolist())
    for data in (Part(x, y), [x, y.tolist()], TensorDataset(x, y), DataLoader(TensorDataset(x, y), 4)):
        other = as_probe(data, 0)
        assert torch.equal(other.x, first.x)
        assert torch.equal(other.y, first.y)
        assert other.fingerprint == first.fingerprint
    assert not torch.equal(as_probe((x, y), 1).x, first.x)
    assert torch.equal(first.first(4), first.x[:4])
    pairs = {tuple(a.tolist()): int(b) for a, b in zip(x, y)}
    assert all(pairs[tuple(a.tolist())] == int(b) for a, b in zip(first.x, first.y))


def test_mappings_and_no_labels() -> None:
    ids = torch.arange(12).reshape(6, 2)
    probe = as_probe({"input_ids": ids, "labels": torch.arange(6)}, 0)
    assert probe.y is not None
    assert set(probe.x) == {"input_ids"}
    assert torch.equal(probe.x["input_ids"][:, 0] // 2, probe.y)
    assert as_probe(ids, 0).y is None
    items = [{"input_ids": row, "label": int(k)} for k, row in enumerate(ids)]
    loaded = as_probe(DataLoader(items, 2), 0)  # type: ignore[arg-type]
    assert torch.equal(loaded.x["input_ids"], probe.x["input_ids"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (torch.zeros(0, 3), "empty probe"),
        ((torch.zeros(0, 3), torch.zeros(0)), "empty probe"),
        (torch.zeros(1, 3), "one item"),
        ((torch.zeros(4, 3), torch.zeros(3)), "labels of shape"),
        ((torch.zeros(4, 3), torch.full((4,), torch.nan)), "NaN"),
        (3, "type int"),
        ((torch.zeros(4), torch.zeros(4), torch.zeros(4)), "3 members"),
        (DataLoader(TensorDataset(torch.zeros(4, 3)), 2, shuffle=True), "shuffling"),
        ((["a", "b"], [0, 1]), "without tensors"),
    ],
)
def test_refusals(data: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        as_probe(data, 0)

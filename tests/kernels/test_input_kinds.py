"""Tensors, tuples, mappings, Datasets, DataLoaders: one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ntkscope as ns
from contracts.kernel import perceptron, seeded
from ntkscope.core import Part
from oracles.against import NAMES, compare, options_for
from oracles.closeness import assert_kernel_close
from strategies.networks import Net, noise, randomize, tokens

every_kernel = pytest.mark.parametrize("name", NAMES)


def masked() -> tuple[nn.Module, dict[str, Tensor]]:
    """A tiny encoder that takes what a tokenizer gives."""

    def run(m: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = m.embed(input_ids)
        h, _ = m.attend(h, h, h, key_padding_mask=attention_mask == 0)
        weight = attention_mask[..., None].to(h.dtype)
        return m.head((m.mix(h).tanh() * weight).sum(1) / weight.sum(1))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = {"embed": nn.Embedding(9, 4), "attend": nn.MultiheadAttention(4, 2, batch_first=True)}
        model = randomize(Net(run, **parts, mix=nn.Linear(4, 4), head=nn.Linear(4, 2)))
    mask = (torch.arange(5)[None] < torch.tensor([5, 3, 4, 1])[:, None]).long()
    return model, {"input_ids": tokens(4, 5, vocabulary=9), "attention_mask": mask}


def part_of(x: Mapping[str, Tensor], index: slice) -> dict[str, Tensor]:
    return {key: value[index] for key, value in x.items()}


@every_kernel
def test_mappings_are_keywords(name: str) -> None:
    model, x = masked()
    compare(name, model, x, part_of(x, slice(1, 3)), **options_for(name, model))


@every_kernel
def test_tuples_are_positional(name: str) -> None:
    model, x = masked()
    compare(name, model, (x["input_ids"], x["attention_mask"]), **options_for(name, model))


class Mappings(Dataset[Any]):
    """Items are mappings, with a label or without."""

    def __init__(self, x: Mapping[str, Tensor], labelled: bool) -> None:
        self.x, self.labelled = x, labelled

    def __len__(self) -> int:
        return len(self.x["input_ids"])

    def __getitem__(self, index: int) -> Any:
        item = {key: value[index] for key, value in self.x.items()}
        return (item, index % 2) if self.labelled else item


@pytest.mark.parametrize("labelled", [True, False])
def test_datasets_of_mappings(labelled: bool) -> None:
    model, x = masked()
    expected = ns.kernel("trntk0", model, x).dense()
    data = Mappings(x, labelled)
    for given in (data, DataLoader(data, batch_size=3)):
        assert_kernel_close(ns.kernel("trntk0", model, given).dense(), expected, 1e-12)


@pytest.mark.parametrize("case", [masked, lambda: seeded(perceptron)], ids=["mappings", "tensors"])
def test_a_part_of_a_data_set(case: Callable[[], tuple[nn.Module, Any]]) -> None:
    model, x = case()
    part = Part(x, torch.zeros(len(x) if isinstance(x, Tensor) else 4, dtype=torch.long))
    assert_kernel_close(ns.kernel("trntk0", model, part).dense(), ns.kernel("trntk0", model, x).dense(), 1e-12)


def test_one_side_a_loader_the_other_a_tensor() -> None:
    model, x = seeded(perceptron)
    loader = DataLoader(TensorDataset(x, torch.arange(5)), batch_size=2)
    expected = ns.kernel("trntk0", model, x, x[:3]).dense()
    assert_kernel_close(ns.kernel("trntk0", model, loader, x[:3]).dense(), expected, 1e-12)
    assert_kernel_close(ns.kernel("trntk0", model, x[:3], loader).dense(), expected.T, 1e-12)


def test_a_view_of_the_inputs() -> None:
    model, _ = seeded(perceptron)
    strided = noise(5, 10)[:, ::2]
    assert not strided.is_contiguous()
    compare("entk", model, strided)


def test_a_network_that_takes_a_second_argument_with_a_default() -> None:
    model = randomize(Net(lambda m, x, scale=2.0: m.head(scale * x), head=nn.Linear(4, 3)))
    compare("trntk0", model, noise(3, 4))

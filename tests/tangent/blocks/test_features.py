"""Features: blocks put side by side are the whole, and what is held at once is what was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ntkscope.tangent.blocks import features
from ntkscope.tangent.blocks.features import DenseFeature, FactoredFeature, Feature, self_products

SIZES = st.tuples(*(st.integers(1, 4) for _ in range(6)))  # groups, samples, positions, inside, heads, outside


class Made(TorchDispatchMode):
    """The tensors that operations make, each memory once: how many numbers in all, and in the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.kept[found.untyped_storage().data_ptr()] = found  # and its memory not given to another
        return found

    def numbers(self) -> list[int]:
        return [tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in self.kept.values()]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both(sizes: tuple[int, ...], *, scaled: bool = False) -> list[Feature]:
    g, n, s, i, c, o = sizes
    scale = drawn(n, seed=3) if scaled else None
    return [
        FactoredFeature(drawn(g, n, s, i), drawn(g, n, s, c, o, seed=1), scale),
        DenseFeature(drawn(n, c, i * o), scale),
    ]


@given(sizes=SIZES, scaled=st.booleans(), block=st.integers(1, 5), n=st.integers(1, 12))
def test_blocks_put_side_by_side_are_the_whole(sizes: tuple[int, ...], scaled: bool, block: int, n: int) -> None:
    for whole in both((sizes[0], n, *sizes[2:]), scaled=scaled):
        made: Any = whole.empty(n)
        for start in range(0, n, block):
            made.put(start, whole[start : start + block])
        assert torch.equal(made.stored, whole.stored)
        if isinstance(whole, FactoredFeature):
            assert torch.equal(made.a, whole.a)
        if whole.scale is not None:
            assert torch.equal(made.scale, whole.scale)


@given(sizes=SIZES)
def test_a_self_product_holds_about_what_is_said(sizes: tuple[int, ...]) -> None:
    """The result besides; products of matrices may copy their sides once more."""
    for whole in both((sizes[0], 1, *sizes[2:])):
        with Made() as made:
            features._self_products(whole)
        assert sum(made.numbers()) <= 2 * features._numbers_each(whole) + sizes[4]


@pytest.mark.parametrize("positions", [1, 3, 8])
def test_sums_of_all_draws_are_held_for_some_samples_at_a_time(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    k, most = 8, 4000
    feature = both((1, 40, positions, 3, 2, 2))[0]
    weights, along = drawn(k, 40, 2, seed=4), drawn(k, 3, seed=5)
    whole, norms = feature.combined(weights, 0, along)
    monkeypatch.setitem(features._DRAWN, "cpu", most)
    with Made() as made:
        found, again = feature.combined(weights, 0, along)
    assert max(made.numbers()) <= most
    torch.testing.assert_close(found, whole)
    for one, other in zip(again, norms, strict=True):
        torch.testing.assert_close(one.sums, other.sums)


def test_self_products_are_those_of_formed_gradients() -> None:
    feature = both((2, 5, 3, 4, 2, 3))[0]
    assert isinstance(feature, FactoredFeature)
    formed = torch.einsum("gnsco,gnsi->ncgoi", feature.b.double(), feature.a.double())
    torch.testing.assert_close(self_products(feature), formed.square().sum((2, 3, 4)))

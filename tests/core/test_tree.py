"""The input tree: one walk over nested inputs for every room."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.model.calling import arguments, logits
from ntkscope.core.model.tree import join, leaves, length, map_tensors, move, take, tensors

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Fields:
    x: Tensor
    more: Any = None


X = torch.arange(6.0).reshape(3, 2)
TREES: dict[str, Any] = {
    "tensor": X,
    "tuple": (X, X[:, 0].long()),
    "mapping": {"ids": X.long(), "mask": X > 1},
    "nested": {"pair": Pair(X, (X[:, 1], {"deep": X})), "texts": ["a", "b", "c"]},
    "a tokenizer's output": UserDict({"input_ids": X.long()}),
    "dataclass": Fields(X, (X > 1, {"deep": X})),
}


@pytest.mark.parametrize("x", TREES.values(), ids=TREES)
def test_rows_taken_and_joined_again_are_the_tree(x: Any) -> None:
    assert length(x) == 3
    first, rest = take(x, slice(0, 1)), take(x, torch.tensor([1, 2]))
    assert (length(first), length(rest)) == (1, 2)
    whole = join([tensors(first)[0], tensors(rest)[0]])
    assert torch.equal(whole, tensors(x)[0])
    if x is not TREES["nested"]:
        for again, before in zip(tensors(join([first, rest])), tensors(x), strict=True):
            assert again.dtype == before.dtype
            assert torch.equal(again, before)


def test_kinds_of_branches_are_kept() -> None:
    nested = map_tensors(lambda t: t + 1, TREES["nested"])
    assert isinstance(nested["pair"], Pair)
    assert nested["texts"] == ["a", "b", "c"]
    assert torch.equal(nested["pair"].right[1]["deep"], X + 1)


def test_lists_hold_rows_for_take_and_tensors_for_map() -> None:
    ragged = [torch.ones(1), torch.ones(2), torch.ones(3)]
    assert [len(t) for t in take(ragged, [2, 0])] == [3, 1]
    assert [float(t.sum()) for t in map_tensors(lambda t: 2 * t, ragged)] == [2, 4, 6]


def test_a_tuple_of_numbers_or_texts_is_one_leaf() -> None:
    assert join([{"ids": (1, 2)}, {"ids": (3, 4)}], torch.stack)["ids"].tolist() == [[1, 2], [3, 4]]
    assert take(("a", "b", "c"), [2]) == ["c"]
    assert [place for place, _ in leaves(((1, 2), X))] == ["x[0]", "x[1]"]


def test_move_casts_numbers_that_float_alone() -> None:
    moved = move({"a": X, "b": (X.long(), [X > 1])}, "cpu", torch.float64)
    assert [t.dtype for t in tensors(moved)] == [torch.float64, torch.int64, torch.bool]


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        ([{"a": X}, {"b": X}], "no member 'a'"),
        ([(X, X), (X,)], "no member 1"),
        ([X, X[:, :1]], "of one shape"),
        ([["a"], ["b"]], "cannot be joined"),
    ],
)
def test_trees_that_do_not_join_say_why(trees: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        join(trees)


def test_no_inputs_have_no_length() -> None:
    with pytest.raises(UsageError, match="expected at least one tensor"):
        length({})


class Named(nn.Module):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x if y is None else x + y


class Whole(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["x"]


@pytest.mark.parametrize(
    ("model", "x", "called"),
    [
        (Named(), X, ((X,), {})),
        (Named(), (X, X), ((X, X), {})),
        (Named(), {"x": X, "y": X, "labels": X}, ((), {"x": X, "y": X})),
        (Whole(), UserDict({"x": X, "y": X}), (({"x": X, "y": X},), {})),  # it may read both
    ],
)
def test_a_model_is_called_by_position_by_name_or_with_the_whole_mapping(model: nn.Module, x: Any, called: Any) -> None:
    assert repr(arguments(model, x)) == repr(called)


def test_names_that_a_model_does_not_take_are_refused() -> None:
    with pytest.raises(UsageError, match="neither by name nor as one argument"):
        arguments(nn.Bilinear(1, 1, 1), {"input1": X})


def test_outputs_are_a_tensor_or_carry_one() -> None:
    assert logits(X) is logits({"logits": X}) is X
    with pytest.raises(UsageError, match="the model returned dict"):
        logits({"x": X})

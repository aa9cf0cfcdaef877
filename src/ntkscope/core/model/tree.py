"""The input tree: a tensor, or tuples and mappings of them, whose leaves share their first axis.

Everything that walks such a tree is here. Tuples, mappings (a tokenizer's output among them) and dataclasses are branches. A
tensor, an array, a list, and a tuple of texts or numbers are leaves: a list is a column of items, one per row. Only `tensors`,
`map_tensors` and `move` look for tensors inside lists too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ntkscope.core.errors import UsageError

Inputs: TypeAlias = Any  # a Tensor, or a tuple / mapping of Tensors sharing their first axis, or a list of strings
PLAIN = (str, bytes, int, float, np.generic, type(None))


def map_leaves(function: Callable[..., Any], x: Inputs, *others: Inputs) -> Inputs:
    """The tree of `function(leaf, ...)`, with the leaves of `others` at the same place behind it.

    >>> map_leaves(lambda a, b: a + b, {"ids": (1, torch.tensor(2))}, {"ids": (10, torch.tensor(20))})
    {'ids': (11, tensor(22))}
    """
    if isinstance(x, Tensor) or not is_branch(x):
        return function(x, *others)
    members, rest = dict(_members(x)), [_named(other) for other in others]
    for other in rest:
        for key in (*members, *other):
            if key not in members or key not in other:
                raise UsageError(f"some inputs have no member {key!r}; expected the same members in all of them")
    return _as(x, {key: map_leaves(function, value, *(each[key] for each in rest)) for key, value in members.items()})


def from_arrays(x: Inputs, dtype: torch.dtype | None = None) -> Inputs:
    """The tree with tensors in place of NumPy arrays; those of real numbers as `dtype`, since NumPy makes all float64.

    >>> from_arrays({"x": np.ones(2), "ids": np.array([3])}, torch.float32)
    {'x': tensor([1., 1.]), 'ids': tensor([3])}
    """

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "fiub":
            return leaf
        tensor = torch.as_tensor(leaf)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return map_leaves(one, x)


def leaves(x: Inputs, name: str = "x") -> Iterator[tuple[str, Any]]:
    """Every leaf with its place, written as the expression that picks it.

    >>> [place for place, _ in leaves({"ids": torch.zeros(2), "more": (torch.ones(2), ["a", "b"])})]
    ["x['ids']", "x['more'][0]", "x['more'][1]"]
    """
    if not is_branch(x):
        yield name, x
        return
    for key, value in _members(x):
        yield from leaves(value, f"{name}.{key}" if _is_record(x) else f"{name}[{key!r}]")


def named(x: Any) -> dict[Any, Any] | None:
    """The members of a mapping, or the fields of a dataclass or namedtuple, by name; None for anything else.

    >>> named({"x": 1}), named((1, 2))
    ({'x': 1}, None)
    """
    if isinstance(x, tuple):
        return dict(zip(x._fields, x)) if hasattr(x, "_fields") else None
    return dict(_members(x)) if isinstance(x, Mapping) or _is_record(x) else None


def map_tensors(function: Callable[[Tensor], Any], x: Inputs) -> Inputs:
    """The tree with `function` applied to every tensor, those in lists too; everything else stays as it is."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        if isinstance(leaf, list) and not _is_plain(leaf):
            return type(leaf)([map_leaves(one, member) for member in leaf])
        return leaf

    return map_leaves(one, x)


def tensors(x: Inputs) -> list[Tensor]:
    """Every tensor in the order of the tree, those in lists too.

    >>> [t.tolist() for t in tensors(({"a": torch.tensor([1])}, [torch.tensor([2])], "text"))]
    [[1], [2]]
    """
    found: list[Tensor] = []
    map_tensors(found.append, x)
    return found


def length(x: Inputs) -> int:
    """The number of rows: the length of the first leaf.

    >>> length((torch.zeros(3, 2), torch.zeros(3))), length(["a", "b"])
    (3, 2)
    """
    first = next(leaves(x), None)
    if first is None:
        raise UsageError("got an empty mapping or tuple as inputs; expected at least one tensor")
    try:
        return len(first[1])
    except TypeError:
        kind = type(first[1]).__name__
        raise UsageError(f"got a {kind} without rows; expected tensors or lists with a row per item") from None


def take(x: Inputs, index: Any) -> Inputs:
    """The rows at `index`: an integer, a slice or a sequence of integers.

    >>> take({"ids": torch.arange(4), "texts": ["a", "b", "c", "d"]}, torch.tensor([3, 1]))
    {'ids': tensor([3, 1]), 'texts': ['d', 'b']}
    """

    def rows(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) or isinstance(index, int | slice):
            return leaf[index]
        return [leaf[int(i)] for i in torch.as_tensor(index).flatten()]

    return map_leaves(rows, x)


def move(x: Inputs, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Inputs:
    """The tree on `device`, floating-point tensors as `dtype`; None keeps what is there."""
    return map_tensors(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None), x)


def join(
    trees: Sequence[Inputs], how: Callable[[list[Tensor]], Tensor] = torch.cat, what: str = "the inputs"
) -> Inputs:
    """One tree from several of the same structure, joined leaf by leaf; `what` names them in errors.

    >>> join([(torch.tensor([1]), torch.tensor([2])), (torch.tensor([3]), torch.tensor([4]))])
    (tensor([1, 3]), tensor([2, 4]))
    """

    def together(*values: Any) -> Tensor:
        return how([torch.as_tensor(value) for value in values])

    try:
        return map_leaves(together, *trees)
    except UsageError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{what} cannot be joined into one batch ({error}); expected tensors of one shape: pad texts to one length,"
            " resize images to one size"
        ) from error


def _is_plain(values: Sequence[Any]) -> bool:
    return all(isinstance(value, PLAIN) for value in values)


def is_branch(x: Any) -> bool:
    """Whether `x` has members of its own: a mapping, a dataclass, a tuple that is not one of texts or numbers."""
    return isinstance(x, Mapping) or _is_record(x) or (isinstance(x, tuple) and not _is_plain(x))


def _is_record(x: Any) -> bool:
    return is_dataclass(x) and not isinstance(x, type | Mapping)


def _members(x: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(x, Mapping):
        return x.items()
    return ((field.name, getattr(x, field.name)) for field in fields(x)) if _is_record(x) else enumerate(x)


def _named(x: Any) -> dict[Any, Any]:
    """The members of a branch or a list; of anything else none."""
    return dict(_members(x)) if is_branch(x) or isinstance(x, list | tuple) else {}


def _as(like: Any, members: dict[Any, Any]) -> Any:
    """A branch of the same kind as `like`; a mapping becomes a dict."""
    if isinstance(like, Mapping):
        return members
    if _is_record(like):
        made = copy.copy(like)
        for name, value in members.items():
            object.__setattr__(made, name, value)  # a frozen one too
        return made
    return type(like)(*members.values()) if hasattr(like, "_fields") else type(like)(members.values())

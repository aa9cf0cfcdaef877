"""Kernels of a network between training and test inputs: each computed once, in one pass where its features allow that."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ntkscope.core import Inputs
from ntkscope.core.model.tree import join, length
from ntkscope.core.sizes import parse_bytes
from ntkscope.kernels import KERNELS, kernel
from ntkscope.kernels.costs import in_one_pass
from ntkscope.linalg import Gram
from ntkscope.machines.pair import KernelPair

BOTH = ("train", "test")
MEMORY = "2GiB"  # the default of `ntkscope.kernel`


@dataclass(frozen=True, eq=False)
class Computed:
    """A part of a kernel as it was computed: "train", "test", or "all" where one pass over all inputs gave both.

    `gram` is what the kernel returned, with its certificate and its coverage; `sides` its Grams of training and test inputs.
    """

    part: str
    gram: Gram
    sides: Mapping[str, Gram]


def parts(
    name: str, model: nn.Module, x_train: Inputs, x_test: Inputs, *, wanted: Collection[str] = BOTH, **options: Any
) -> Iterator[Computed]:
    """Yield the parts of the kernel `name` as they are computed, so that each can be stored before the next one starts.

    `wanted`: the sides that are needed, "train", "test" or both. `options` are those of `ntkscope.kernel`.

    >>> x = torch.eye(3)
    >>> [(part.part, sorted(part.sides)) for part in parts("ck", nn.Linear(3, 2), x, x[:1])]
    [('all', ['test', 'train'])]
    >>> [(part.part, sorted(part.sides)) for part in parts("trntk0", nn.Linear(3, 2), x[:2], x)]
    [('train', ['train']), ('test', ['test'])]
    """
    n, m = length(x_train), length(x_test)
    if _together(name, n, m, "train" in wanted, options):
        both = kernel(name, model, joined(x_train, x_test), **options)
        yield Computed("all", both, {"train": both[:n, :n], "test": both[n:, :n]})
        return
    if "train" in wanted:
        made = kernel(name, model, x_train, **options)
        yield Computed("train", made, {"train": made})
    if "test" in wanted:
        made = kernel(name, model, x_test, x_train, **options)
        yield Computed("test", made, {"test": made})


def _together(name: str, n: int, m: int, train: bool, options: Mapping[str, Any]) -> bool:
    """Whether one pass over all inputs gives both sides with less work, and its result takes little of the memory.

    Products of gradients are then always of all inputs, also where the test side alone is wanted: it has the same last digits.
    """
    traits = KERNELS.traits(name)
    if traits.features:
        return train
    small = 8 * (n + m) ** 2 <= parse_bytes(options.get("memory", MEMORY)) / 4
    return small and in_one_pass(n, m) and not traits.per_output and options.get("store") is None


def kernel_pairs(
    how: Mapping[str, Mapping[str, Any]], model: nn.Module, x_train: Inputs, x_test: Inputs, **shared: Any
) -> Iterator[KernelPair]:
    """The kernels named in `how`, each with its own options there, one after the other; `shared` options go to all.

    A kernel and the kernel of its cosines are computed once, with the options of the first of them.

    Examples:
        >>> x = torch.eye(3)
        >>> [pair.name for pair in kernel_pairs({"trntk": {}, "ck": {}, "trntk0": {}}, nn.Linear(3, 2), x, x[:1])]
        ['trntk', 'trntk0', 'ck']
    """
    for computed in dict.fromkeys(KERNELS.computed_as(name) for name in how):
        views = [name for name in how if KERNELS.computed_as(name) == computed]
        options = how[views[0]]
        began = clock(model)
        sides: dict[str, Gram] = {}
        for part in parts(computed, model, x_train, x_test, **shared, **options):
            sides |= part.sides
        base = KernelPair(computed, sides["train"], sides["test"], clock(model) - began, how=options)
        del sides, part
        for name in views:
            yield base if name == computed else base.normalized(name)
        del base


def joined(first: Inputs, second: Inputs) -> Inputs:
    """The inputs of both, one after the other.

    Examples:
        >>> joined({"a": x[:2]}, {"a": x[2:]})["a"].equal(x)
        True
    """
    return join([first, second])


def clock(model: nn.Module) -> float:
    """The time in seconds, after the device has finished its work."""
    if any(p.is_cuda for p in model.parameters()):
        torch.cuda.synchronize()
    return time.perf_counter()


def names_of(computed: Iterable[str]) -> tuple[str, ...]:
    """All kernels that the computed ones provide, each kernel of cosines before the one it normalises.

    >>> names_of(["trntk0", "ck"])
    ('trntk', 'trntk0', 'ck')
    """
    return tuple(name for each in computed for name in KERNELS.views_of(each))

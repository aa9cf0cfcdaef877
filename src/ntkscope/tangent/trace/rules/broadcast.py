"""A parameter multiplied with, added to, or spread over activations: layer scales, norms written by hand, positions, class
tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ntkscope.tangent.trace.rules.registry import Find, raw, rule
from ntkscope.tangent.trace.terms import Term, Vector

PRODUCTS = dict.fromkeys((torch.mul, torch.multiply, Tensor.mul, Tensor.__mul__, Tensor.__rmul__))
SUMS = dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__))


EXPANSIONS = dict.fromkeys((Tensor.expand, Tensor.expand_as, Tensor.broadcast_to, torch.broadcast_to))


def summed_over(value: Tensor, kept: tuple[bool, ...]) -> Tensor:
    """(n, q, *trailing) to (n, p): summed over q and over the trailing axes along which the parameter is one number."""
    axes = [1, *(2 + d for d, keep in enumerate(kept) if not keep)]
    return value.sum(axes).flatten(1) if any(kept) else value.sum(axes).unsqueeze(1)


def unchanged(value: Tensor) -> Tensor:
    return value


def _broadcast(arguments: Mapping[str, Any], find: Find, *, product: bool) -> list[Term]:
    """`y = x ∘ w` or `y = x + w` with w spread over the leading axes: `∂/∂w = Σ ȳ x` or `Σ ȳ`."""
    x, weight = arguments["input"], arguments["other"]
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)) or arguments.get("alpha", 1) != 1:
        return []
    if find(weight) is None:
        x, weight = weight, x
    slot = find(weight)
    if slot is None or slot.transposed or find(x) is not None or len(weight) != slot.stop - slot.start:
        return []
    shape = list(weight.shape)
    while shape and shape[0] == 1:
        shape.pop(0)
    lead = x.dim() - len(shape)
    sizes = x.shape[lead:]
    if lead < 1 or any(own not in (1, size) for own, size in zip(shape, sizes)):
        return []
    reduce = partial(summed_over, kept=tuple(own == size for own, size in zip(shape, sizes)))
    if product:
        return [Vector(slot, raw(x), lead, lead, unchanged, reduce)]
    return [Vector(slot, None, lead, lead, None, reduce)]


@rule("input a b c d e f g h", *EXPANSIONS)
def expansion(arguments: Mapping[str, Any], find: Find) -> list[Term] | None:
    """`y = w` for every sample: `∂/∂w = Σ ȳ`. None where leading axes stay as they are: that is a view, not a use.

    That must not depend on how many samples there are: of one sample, `expand(len(x), 1, d)` changes no shape.
    """
    weight, *sizes = (arguments[name] for name in ("input", *"abcdefgh") if name in arguments)
    sizes += [arguments[name] for name in ("size", "other") if name in arguments]
    shape = sizes[0].shape if isinstance(sizes[0], Tensor) else sizes if isinstance(sizes[0], int) else sizes[0]
    slot = find(weight)
    if slot is None:
        return None
    trailing = list(weight.shape)
    while trailing and trailing[0] == 1:
        trailing.pop(0)
    lead = len(shape) - len(trailing)
    if lead < 1 or (len(shape) == weight.dim() and all(size == -1 for size in shape[:lead])):
        return None
    if slot.transposed or len(weight) != slot.stop - slot.start:
        return []
    kept = tuple(size in (own, -1) for own, size in zip(trailing, shape[lead:]))
    return [Vector(slot, None, lead, lead, None, partial(summed_over, kept=kept))]


@rule("input other", *PRODUCTS)
def product(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    return _broadcast(arguments, find, product=True)


@rule("input other alpha", *SUMS)
def addition(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    return _broadcast(arguments, find, product=False)

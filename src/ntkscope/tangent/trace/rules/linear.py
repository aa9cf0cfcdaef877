"""`x Wᵀ + b`: `nn.Linear`, on vectors and on sequences, and any other call of `F.linear`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ntkscope.tangent.trace.rules.registry import Find, raw, rule
from ntkscope.tangent.trace.terms import Outer, Slot, Term, Vector


def one_group(value: Tensor) -> Tensor:
    """(n, s, i) to the canonical activation (n, 1, s, i)."""
    return value.unsqueeze(1)


def features_first(value: Tensor) -> Tensor:
    """(…, s, o) to the canonical cotangent (…, 1, o, s)."""
    return value.transpose(-1, -2).unsqueeze(-3)


def summed(cotangent: Tensor) -> Tensor:
    """The gradient of a bias: the cotangent summed over positions, (n, s, p) to (n, p)."""
    return cotangent.sum(1)


def affine(x: Tensor, weight: Slot | None, bias: Slot | None, *, transposed: bool) -> list[Term]:
    """Terms of an affine map on the last axis of `x`; `transposed` when the weight is stored (in, out)."""
    lead = x.dim() - 1
    terms: list[Term] = []
    if weight is not None:
        flipped = transposed != weight.transposed
        terms.append(Outer(weight, raw(x), lead, lead, one_group, features_first, transposed=flipped, leading=True))
    if bias is not None and not bias.transposed:
        terms.append(Vector(bias, None, lead, lead, None, summed))
    return terms


@rule("input weight bias", F.linear)
def linear(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    """`y_s = W x_s + b`, so `∂/∂W = Σ_s ȳ_s ⊗ x_s` and `∂/∂b = Σ_s ȳ_s`."""
    return affine(arguments["input"], find(arguments["weight"]), find(arguments.get("bias")), transposed=False)

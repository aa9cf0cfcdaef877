"""`x W` with the weight stored (in, out): `x @ W`, `torch.addmm`, and with it the Conv1D of Hugging Face's GPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ntkscope.tangent.trace.rules.linear import affine
from ntkscope.tangent.trace.rules.registry import Find, rule
from ntkscope.tangent.trace.terms import Term


@rule("input other", torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matmul(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    """`y_s = Wᵀ x_s`, so `∂/∂W = Σ_s x_s ⊗ ȳ_s`. A weight on the left has no term here."""
    x, weight = arguments["input"], arguments["other"]
    if weight.dim() != 2 or x.dim() < 2 or find(x) is not None:
        return []
    return affine(x, find(weight), None, transposed=True)


@rule("input mat1 mat2", torch.addmm, Tensor.addmm)
def addmm(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    """`y_s = Wᵀ x_s + b` with the weight stored (in, out)."""
    if arguments.get("beta", 1) != 1 or arguments.get("alpha", 1) != 1 or find(arguments["mat1"]) is not None:
        return []
    bias = arguments["input"]
    slot = find(bias) if bias.dim() == 1 and len(bias) == arguments["mat2"].shape[1] else None
    return affine(arguments["mat1"], find(arguments["mat2"]), slot, transposed=True)

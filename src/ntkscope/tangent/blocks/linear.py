"""Affine maps whose products are made on tensor cores, each number in two halves (`split_products`), forward and back.

Passes back that are differentiated once more, and those rounded to TF32, are PyTorch's own. The pass that checks uses cuBLAS:
it must not be wrong where what it checks is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ntkscope.core.machine.tensor_cores import tensor_cores
from ntkscope.tangent.blocks import split_products
from ntkscope.tangent.blocks.replaced_calls import ReplacedCalls, Samplewise

LARGE = 2e10  # operations of a product of the pass that checks, from which on three short ones are faster


class _Split(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, own: ReplacedCalls) -> Tensor:
        ctx.own = own
        ctx.save_for_backward(x, weight)
        return mapped(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        cotangent = cotangents[0]
        onward = of_weight = of_bias = None
        if ctx.needs_input_grad[0] and ctx.own.splits(cotangent):
            onward = Samplewise.apply(partial(mapped, weight=weight.T), cotangent)
        elif ctx.needs_input_grad[0]:
            onward = in_three(cotangent, weight)
        if not ctx.own.alone:
            rows = cotangent.reshape(-1, len(weight))
            if ctx.needs_input_grad[1]:
                of_weight = in_three(rows.T, x.reshape(len(rows), -1))
            if ctx.needs_input_grad[2]:
                of_bias = rows.sum(0)
        return onward, of_weight, of_bias, None


def in_three(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` by cuBLAS: three TF32 products of numbers in two parts, which leave out 2⁻²² of a number at most.

    One product where TF32 is allowed, or may not be had, or launches cost more than it gains.
    """
    short = 2.0 * left.numel() * right.shape[-1] < LARGE or torch.backends.cuda.matmul.fp32_precision == "tf32"
    short |= torch.is_grad_enabled()  # taking a number apart cuts the graph
    if short or left.dtype != torch.float32 or not left.is_cuda:
        return left @ right
    (high, low), (other_high, other_low) = _parts(left), _parts(right)
    with tensor_cores(True):
        return (low @ other_high).add_(high @ other_low).add_(high @ other_high)


def _parts(value: Tensor) -> tuple[Tensor, Tensor]:
    high = (value.view(torch.int32) & -(2**13)).view(torch.float32)
    return high, value - high


def mapped(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x Wᵀ + b` along the last axis, which is short enough for one part."""
    out = x.new_empty(*x.shape[:-1], len(weight))
    split_products.product(x.reshape(1, -1, x.shape[-1]), weight[None], bias, out.view(1, -1, len(weight)))
    return out


def split(function: Any, arguments: dict[str, Any], own: ReplacedCalls) -> Tensor | None:
    """The call made so; None for other calls, and where float32 units are as fast."""
    if function is not F.linear or torch.is_autocast_enabled(arguments["input"].device.type):
        return None
    x, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
    if weight.dim() != 2 or not split_products.splittable(*(value for value in (x, weight, bias) if value is not None)):
        return None
    if bias is not None and (bias.shape != weight.shape[:1] or not bias.is_contiguous()):
        return None
    rows, longest = (
        x.numel() // max(1, x.shape[-1]),
        max(weight.shape),
    )  # of which one is the inner axis of the pass back
    if longest > split_products.LONGEST or not split_products.worthwhile(rows, *weight.shape):
        return None
    return _Split.apply(x, weight, bias, own)

"""Convolutions whose backward pass is a convolution too, where that is the faster of two equal methods.

CPU libraries tune the forward convolution (blocked, Winograd); their input gradient is often two to three times slower for
the same work. With stride 1 the input gradient is itself a forward convolution of the cotangent with the flipped kernel,
channels swapped. Exact up to the order of sums. Mostly cotangents alone are asked for; gradients of weights are computed
while `weights_too()` is open.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ntkscope.tangent.rules.convolution import spread

CONVOLUTIONS = {F.conv1d: F.conv1d, F.conv2d: F.conv2d, F.conv3d: F.conv3d}
BY_DIMENSION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
GROWTH = 1.3  # positions the flipped convolution may compute for each one that is needed


_ASKED = threading.local()


@contextlib.contextmanager
def weights_too() -> Iterator[None]:
    """While open, backward passes of this thread also give the gradients of weights and biases."""
    _ASKED.weights = True
    try:
        yield
    finally:
        _ASKED.weights = False


class _Flipped(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Any, padding: Sequence[int], dilation: Sequence[int]
    ) -> Tensor:
        dims = weight.dim() - 2
        ctx.flipped = weight.flip(list(range(2, 2 + dims))).transpose(0, 1).contiguous()
        ctx.padding = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding)]
        ctx.dilation, ctx.own, ctx.bias = dilation, padding, bias is not None
        ctx.save_for_backward(x, weight)
        return BY_DIMENSION[dims](x, weight, bias, 1, list(padding), list(dilation))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        dims = ctx.flipped.dim() - 2
        cotangent = cotangents[0]
        onward = BY_DIMENSION[dims](cotangent, ctx.flipped, None, 1, ctx.padding, list(ctx.dilation))
        if not getattr(_ASKED, "weights", False):
            return onward, None, None, None, None
        x, weight = ctx.saved_tensors
        mask = [False, True, ctx.bias]
        sizes = [weight.shape[0]] if ctx.bias else None
        _, of_weight, of_bias = torch.ops.aten.convolution_backward(
            *(cotangent, x, weight, sizes, [1] * dims, list(ctx.own), list(ctx.dilation), False, [0] * dims, 1, mask)
        )
        return onward, of_weight, of_bias, None, None


def flipped_bytes(leaves: Iterable[Tensor], device: torch.device) -> int:
    """At most what the flipped kernels of one forward pass take."""
    return sum(t.numel() * t.element_size() for t in leaves if t.dim() > 2) if device.type == "cpu" else 0


def quick(function: Any, arguments: dict[str, Any]) -> Tensor | None:
    """The call made so, or None where it would not be equal or not be faster."""
    if function not in CONVOLUTIONS:
        return None
    x, weight = arguments["input"], arguments["weight"]
    dims = weight.dim() - 2
    padding = arguments.get("padding", 0)
    if x.is_cuda or not x.requires_grad or x.dim() != dims + 2 or isinstance(padding, str):
        return None
    stride, padding = spread(arguments.get("stride", 1), dims), spread(padding, dims)
    dilation = spread(arguments.get("dilation", 1), dims)
    if any(s != 1 for s in stride) or int(arguments.get("groups", 1)) != 1:
        return None
    shrink = [d * (k - 1) - 2 * p for d, k, p in zip(dilation, weight.shape[2:], padding)]
    if any(p > d * (k - 1) for p, d, k in zip(padding, dilation, weight.shape[2:])):
        return None
    if prod(x.shape[2:]) > GROWTH * prod(size - lost for size, lost in zip(x.shape[2:], shrink)):
        return None
    bias = arguments.get("bias")
    return _Flipped.apply(x, weight, bias, padding, dilation)

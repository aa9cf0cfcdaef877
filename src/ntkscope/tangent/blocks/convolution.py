"""Convolutions whose backward pass is a convolution too, where that is the faster of two equal methods.

CPU libraries tune the forward convolution (blocked, Winograd); their input gradient is often two to three times slower for
the same work, and their weight gradient up to ten times. With stride 1 the input gradient is itself a forward convolution of
the cotangent with the flipped kernel, channels swapped; the weight gradient is one of the inputs with the cotangents, samples
and channels swapped. Exact up to the order of sums. On a GPU that is one of the modes that are timed (`execution`); the weight
gradient is PyTorch's own there, and of small images the input gradient is a product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ntkscope.tangent.blocks import split_products
from ntkscope.tangent.blocks.replaced_calls import ReplacedCalls, Samplewise
from ntkscope.tangent.trace.rules.convolution import spread

CONVOLUTIONS = {F.conv1d: F.conv1d, F.conv2d: F.conv2d, F.conv3d: F.conv3d}
BY_DIMENSION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
GROWTH = 1.3  # positions the flipped convolution may compute for each one that is needed
# Positions of an image up to which the patches of cotangents are multiplied on a GPU. H200, float32, 512 channels, 4 × 4:
# 0.5 ms for 256 images; 1.9 ms as a convolution, 1.1 ms by cuDNN's own input gradient.
SMALL = 32
MULTIPLIED: tuple[str, ...] = ("cuda",)  # devices where that is done


class _Flipped(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Any,
        padding: Sequence[int],
        dilation: Sequence[int],
        flip: bool,
        split: bool,
        own: ReplacedCalls,
    ) -> Tensor:
        dims = weight.dim() - 2
        if flip:
            inner = dims == 2 and x.is_cuda and x.is_contiguous(memory_format=torch.channels_last)
            layout = torch.channels_last if inner else torch.contiguous_format
            ctx.flipped = _turned(weight).contiguous(memory_format=layout)
        ctx.flip, ctx.split, ctx.padding, ctx.dilation, ctx.own = flip, split, list(padding), list(dilation), own
        ctx.save_for_backward(x, weight)
        return BY_DIMENSION[dims](x, weight, bias, 1, list(padding), list(dilation))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        dims, cotangent = weight.dim() - 2, cotangents[0]
        onward = of_weight = of_bias = None
        reach = [d * (k - 1) - p for d, k, p in zip(ctx.dilation, weight.shape[2:], ctx.padding)]
        if ctx.needs_input_grad[0] and ctx.split and ctx.own.splits(cotangent):
            work = partial(split_products.convolved, weight=_turned(weight), padding=reach)
            onward = Samplewise.apply(work, cotangent)
        elif ctx.needs_input_grad[0] and ctx.flip:
            small = (
                dims == 2 and x.device.type in MULTIPLIED and prod(x.shape[2:]) <= SMALL and set(ctx.dilation) == {1}
            )
            convolve = patches_multiplied if small else BY_DIMENSION[dims]
            # which may be differentiated once more
            kernel = _turned(weight) if torch.is_grad_enabled() else ctx.flipped
            onward = convolve(cotangent, kernel, None, 1, reach, ctx.dilation)
        elif ctx.needs_input_grad[0]:
            how = ([1] * dims, ctx.padding, ctx.dilation, False, [0] * dims, 1)
            onward = torch.ops.aten.convolution_backward(cotangent, x, weight, None, *how, [True, False, False])[0]
        if not ctx.own.alone:
            if ctx.needs_input_grad[1]:
                of_weight = of_weights(x, weight, cotangent, ctx.padding, ctx.dilation)
            if ctx.needs_input_grad[2]:
                of_bias = cotangent.transpose(0, 1).flatten(1).sum(1)
        return onward, of_weight, of_bias, None, None, None, None, None


def _turned(weight: Tensor) -> Tensor:
    """The kernel of the pass back: flipped, its channels swapped."""
    return weight.flip(list(range(2, weight.dim()))).transpose(0, 1)


def patches_multiplied(
    x: Tensor, weight: Tensor, bias: None, stride: int, padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """`F.conv2d` with stride 1, not dilated, as one product of matrices, (n · positions, in · taps) with (in · taps, out)."""
    x = F.pad(x, [padding[1], padding[1], padding[0], padding[0]])
    x = x.unfold(2, weight.shape[2], 1).unfold(3, weight.shape[3], 1)
    n, _, height, width = x.shape[:4]
    rows = x.permute(0, 2, 3, 1, 4, 5).reshape(n * height * width, -1)
    return (rows @ weight.flatten(1).T).view(n, height, width, -1).permute(0, 3, 1, 2)


def of_weights(x: Tensor, weight: Tensor, cotangent: Tensor, padding: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """The gradient of the weights, (out, in, *kernel): inputs (in, n, …) convolved with cotangents (out, n, …)."""
    if x.is_cuda:
        dims = x.dim() - 2
        how = ([1] * dims, list(padding), list(dilation), False, [0] * dims, 1)
        return torch.ops.aten.convolution_backward(cotangent, x, weight, None, *how, [False, True, False])[1]
    convolve = BY_DIMENSION[x.dim() - 2]
    return convolve(
        x.transpose(0, 1), cotangent.transpose(0, 1), None, stride=list(dilation), padding=list(padding)
    ).transpose(0, 1)


def flipped_bytes(leaves: Iterable[Tensor], device: torch.device) -> int:
    """At most what the flipped kernels of one forward pass take; on a GPU an execution mode has room for them."""
    return sum(t.numel() * t.element_size() for t in leaves if t.dim() > 2) if device.type == "cpu" else 0


def quick(
    function: Any,
    arguments: dict[str, Any],
    own: ReplacedCalls,
    anywhere: bool = False,
    inner: bool = False,
    split: bool = False,
) -> Tensor | None:
    """The call made so, or None where it would not be equal or not be faster. `anywhere`: on a GPU too; `inner`: images with
    their channels innermost; `split`: passes back in split products."""
    if function not in CONVOLUTIONS:
        return None
    x, weight = arguments["input"], arguments["weight"]
    dims = weight.dim() - 2
    padding = arguments.get("padding", 0)
    if (x.is_cuda and not anywhere) or x.dim() != dims + 2 or isinstance(padding, str) or not len(x):
        return None
    stride, padding = spread(arguments.get("stride", 1), dims), spread(padding, dims)
    dilation = spread(arguments.get("dilation", 1), dims)
    if any(s != 1 for s in stride) or int(arguments.get("groups", 1)) != 1:
        return None
    shrink = [d * (k - 1) - 2 * p for d, k, p in zip(dilation, weight.shape[2:], padding)]
    fits = all(p <= d * (k - 1) for p, d, k in zip(padding, dilation, weight.shape[2:]))
    if inner and dims == 2:
        x, weight = (each.contiguous(memory_format=torch.channels_last) for each in (x, weight))
    grows = prod(x.shape[2:]) > GROWTH * prod(size - lost for size, lost in zip(x.shape[2:], shrink))
    flip = x.requires_grad and fits and not grows
    split = split and flip and dims == 2 and set(dilation) == {1} and split_products.convolves(x, weight)
    return _Flipped.apply(x, weight, arguments.get("bias"), padding, dilation, flip, split, own)

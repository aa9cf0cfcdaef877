"""Batch norms in evaluation mode whose pass back is one multiplication, for however many heads share it.

With running statistics the norm is `y = w (x - μ) / σ + b`, channel by channel, so the cotangent of `x` is that of `y` times
`w / σ`. PyTorch's own pass back on a GPU sums over positions with one block of threads per channel where gradients of `w` and
`b` are asked for, and copies its input for every head where several share a pass. Values are PyTorch's own; gradients are equal
up to the order of sums.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ntkscope.tangent.blocks.replaced_calls import ReplacedCalls

DEVICES: tuple[str, ...] = ("cuda",)  # where this is done
NORMS = (F.batch_norm, torch.batch_norm)
NUMBERS = (torch.float32, torch.float64)


class _Still(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, eps: float, own: ReplacedCalls
    ) -> Tensor:
        ctx.eps, ctx.own = eps, own
        ctx.factor = _factor(x, weight, variance, eps)
        ctx.save_for_backward(x, weight, mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, weight, mean, variance = ctx.saved_tensors
        cotangent = cotangents[0]
        onward = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:  # which may be differentiated once more
            onward = cotangent * (_factor(x, weight, variance, ctx.eps) if torch.is_grad_enabled() else ctx.factor)
        if not ctx.own.alone:
            others = [0, *range(2, x.dim())]
            if ctx.needs_input_grad[1]:
                standardised = (x - _along(mean, x)) * _factor(x, None, variance, ctx.eps)
                of_weight = (cotangent * standardised).sum(others)
            if ctx.needs_input_grad[2]:
                of_bias = cotangent.sum(others)
        return onward, of_weight, of_bias, None, None, None, None


def _factor(x: Tensor, weight: Tensor | None, variance: Tensor, eps: float) -> Tensor:
    """`w / σ`, along the channels of x."""
    inverse = (variance + eps).rsqrt()
    return _along(inverse if weight is None else inverse * weight, x)


def _along(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (x.dim() - 2))


def still(function: Any, arguments: dict[str, Any], own: ReplacedCalls) -> Tensor | None:
    """The call made so; None for other calls, and where it would not be equal."""
    if function not in NORMS or arguments.get("training", False):
        return None
    x, mean, variance = arguments["input"], arguments["running_mean"], arguments["running_var"]
    weight, bias = arguments.get("weight"), arguments.get("bias")
    others = [value for value in (mean, variance, weight, bias) if value is not None]
    if mean is None or variance is None or mean.requires_grad or variance.requires_grad:
        return None
    if x.device.type not in DEVICES or x.dim() < 2 or not x.numel():
        return None
    if x.dtype not in NUMBERS or {value.dtype for value in others} != {x.dtype}:
        return None
    return _Still.apply(x, weight, bias, mean, variance, arguments.get("eps", 1e-5), own)

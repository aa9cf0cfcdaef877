"""Batch norms in evaluation mode whose pass back is one multiplication, for however many heads share it.

With running statistics the norm is `y = w (x - μ) / σ + b`, channel by channel, so the cotangent of `x` is that of `y` times
`w / σ`. PyTorch's own pass back on a GPU sums over positions with one block of threads per channel where gradients of `w` and
`b` are asked for, and copies its input for every head where several share a pass. Values are PyTorch's own; gradients are equal
up to the order of sums, and those of `w` and `b` are computed while `weights_too()` is open.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ntkscope.tangent.quick_convolution import weights_asked

DEVICES: tuple[str, ...] = ("cuda",)  # where this is done
NORMS = (F.batch_norm, torch.batch_norm)
NUMBERS = (torch.float32, torch.float64)


class _Still(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
        shape = (1, -1, *[1] * (x.dim() - 2))
        inverse = (variance + eps).rsqrt().view(shape)
        factor = inverse if weight is None else inverse * weight.view(shape)
        ctx.save_for_backward(x, mean.view(shape), inverse, factor)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, mean, inverse, factor = ctx.saved_tensors
        cotangent = cotangents[0]
        onward = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            onward = cotangent * factor
        if weights_asked(x.device):
            others = [0, *range(2, x.dim())]
            if ctx.needs_input_grad[1]:
                of_weight = (cotangent * ((x - mean) * inverse)).sum(others)
            if ctx.needs_input_grad[2]:
                of_bias = cotangent.sum(others)
        return onward, of_weight, of_bias, None, None, None


def still(function: Any, arguments: dict[str, Any]) -> Tensor | None:
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
    return _Still.apply(x, weight, bias, mean, variance, arguments.get("eps", 1e-5))

"""Faster spellings of what PyTorch computes slowly on a CPU, within rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class FastOps(TorchFunctionMode):
    """Inside it, tanh is computed as 2σ(2x) - 1, and a linear layer multiplies by a transposed copy of its weight.

    PyTorch's tanh is correct to the last bit and costs three times its sigmoid on a CPU without wide vectors; the
    other spelling is off by at most 2⁻²² in single precision (2⁻⁵¹ in double), everywhere, not relative to tanh x.
    Batched products with a transposed right factor run a quarter slower than with a plain one, more than the copy costs.

    >>> x = torch.linspace(-5, 5, 101)
    >>> with FastOps():
    ...     fast = torch.tanh(x)
    >>> bool((fast - torch.tanh(x)).abs().max() <= 2**-22)
    True
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not kwargs:
            if func in (torch.tanh, Tensor.tanh, functional.tanh):
                return _Tanh.apply(*args)
            if func is functional.linear:
                return _linear(*args)
        return func(*args, **kwargs)


class _Tanh(torch.autograd.Function):
    """tanh x = 2σ(2x) - 1, with the derivative 1 - tanh² x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sigmoid(x * 2).mul_(2).sub_(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = x @ weight.t().contiguous()
    return product if bias is None else product + bias

"""Calls that are made in another, equal way: when they may be, and what their passes back need not give.

Most passes back of ours want cotangents alone, and gradients of weights cost as much again. Those of anyone else (a model that
differentiates inside its forward pass, the pass that checks) get what PyTorch would give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ntkscope.tangent.blocks import split_products

IMAGES = ("input", "weight")


class ReplacedCalls:
    """Whether a pass back through the calls of one watched forward pass wants cotangents alone.

    Each forward pass has its own, so that threads, and those of PyTorch's own that passes back are made in, do not meet.
    """

    def __init__(self) -> None:
        self.alone = False

    def splits(self, cotangent: Tensor) -> bool:
        """Whether such a pass may be made in split products: nothing is differentiated again, cast, or rounded to TF32."""
        plain = torch.is_grad_enabled() or torch.backends.cuda.matmul.fp32_precision == "tf32"
        return self.alone and not plain and cotangent.dtype in split_products.NUMBERS

    @contextmanager
    def of_cotangents(self) -> Iterator[None]:
        before, self.alone = self.alone, True
        try:
            yield
        finally:
            self.alone = before


class Samplewise(Function):
    """Work on many samples, done to those of several heads at once where `vmap` asks for it; not differentiated."""

    @staticmethod
    def forward(work: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return work(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, work: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[1], 0)
        return Samplewise.apply(work, x.flatten(0, 1)).unflatten(0, x.shape[:2]), 0


def recomputed() -> bool:
    """Whether what calls keep for their passes back is kept by someone else, who may compute it again with PyTorch's own calls
    (activation checkpoints)."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def channels_last(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`function(*args, **kwargs)`; a two-dimensional convolution of a batch with its channels innermost, which tensor cores
    read without rearranging them first.

    Inputs and weights are converted for the call alone, so parameters stay as they are; what follows a convolution keeps the
    format by itself. The numbers are the same up to the order of sums.
    """
    if function is F.conv2d:
        given = {**dict(zip(IMAGES, args)), **{name: kwargs[name] for name in IMAGES if name in kwargs}}
        if all(isinstance(given.get(name), Tensor) and given[name].dim() == 4 for name in IMAGES):
            inner = {name: value.contiguous(memory_format=torch.channels_last) for name, value in given.items()}
            args = tuple(inner[IMAGES[k]] if k < len(IMAGES) else value for k, value in enumerate(args))
            return function(*args, **{name: inner.get(name, value) for name, value in kwargs.items()})
    if function == Tensor.view:
        try:
            return function(*args, **kwargs)
        except RuntimeError:  # of a tensor that would be contiguous had its channels not been moved
            return function(args[0].contiguous(), *args[1:], **kwargs)
    return function(*args, **kwargs)

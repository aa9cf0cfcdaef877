"""Members of an ensemble checked against their own networks: what stacking would lose is found before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import Inputs, UsageError
from ntkscope.core.model.calling import call
from ntkscope.core.model.tree import map_leaves, take

FEW = 3  # inputs on which members are checked against their own networks
ATTEMPTS = 3  # with other inputs: rounding may put one activation on the other side of a kink, but not again and again
SHAKEN = 1.25  # times their weights
ROUNDING = 1e4  # units in the last place of the largest output
CANCELLED = (
    64.0  # units in the last place of what was added up, where terms cancel: networks that start as the zero function
)
UNLIKE = (
    "does not compute what the stack of networks computes with its weights, or has other gradients, so they cannot be trained"
    " as one; expected build(seed) to change nothing but weights and buffers, no backward hooks, and a forward pass that does"
    " not hold on to one network's parameters: train them one by one with fit"
)


@contextmanager
def full_float32() -> Iterator[None]:
    """Products and convolutions on a GPU without TF32, whose rounding depends on how many networks are computed together."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def refuse_unlike(models: Sequence[nn.Module], seeds: Sequence[int]) -> None:
    """Raise an error if members train different parameters, or parameters have hooks, which a stack does not have."""
    first = {name: parameter.requires_grad for name, parameter in models[0].named_parameters()}
    for model, seed in zip(models, seeds):
        if {name: parameter.requires_grad for name, parameter in model.named_parameters()} != first:
            raise UsageError(
                f"the network of seed {seed} trains other parameters than that of seed {seeds[0]}; expected the same in all:"
                " train them one by one with fit"
            )
        for name, parameter in model.named_parameters():
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                raise UsageError(
                    f"the parameter {name!r} (seed {seed}) has a hook, which is lost when members are stacked; expected none:"
                    " train the networks one by one with fit"
                )


def few_inputs(x: Inputs, axis: int, start: int = 0) -> Any:
    """A few inputs from `start` on, along the axis they lie on; the last few where there are no more.

    >>> few_inputs(torch.zeros(2, 5, 4), 1).shape, few_inputs(torch.arange(5)[None], 1, 4).tolist()
    (torch.Size([2, 3, 4]), [[2, 3, 4]])
    """

    def some(leaf: Tensor) -> Tensor:
        length = min(FEW, leaf.shape[axis])
        return leaf.narrow(axis, min(start, leaf.shape[axis] - length), length)

    return map_leaves(some, x)


def member_inputs(x: Inputs, axis: int | None, member: int) -> Any:
    """The inputs of one member: all of them where `axis` is None, its own otherwise."""
    return x if axis is None else take(x, member)


def outputs_alone(model: nn.Module, x: Inputs, factor: float = 1.0) -> tuple[Tensor, list[Tensor], float]:
    """A network's own outputs, its parameters times `factor`, gradients of a sum of them, and Σ |θ ∂/∂θ|, the size of what
    is added up to make it; all is restored bit for bit.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(layer.weight)
    >>> outputs_alone(layer, torch.ones(1, 1), 1.25)[0].item(), layer.weight.item()
    (1.25, 1.0)
    """
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(factor)
            out = call(model, x)
            learning = [p for p in model.parameters() if p.requires_grad]
            slopes = gradients(out, learning)
            size = sum(float((p.detach() * slope).abs().sum()) for p, slope in zip(learning, slopes))
        finally:
            with torch.no_grad():
                for tensor, value in zip(tensors, before):
                    tensor.copy_(value)
    return out.detach(), slopes, size


def gradients(outputs: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """Of Σ cᵢ outputsᵢ with unequal cᵢ, the same for every member, with respect to parameters; 0 where they do not matter."""
    if not outputs.requires_grad:
        return [torch.zeros_like(p) for p in params]
    count = outputs.shape[-2:].numel() if outputs.dim() > 1 else len(outputs)
    direction = torch.cos(torch.arange(count, dtype=outputs.dtype, device=outputs.device)).reshape(outputs.shape[-2:])
    found = torch.autograd.grad((outputs * direction).sum(), list(params), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(params, found)]


def alike(found: Tensor, expected: Tensor, size: float = 0.0) -> bool:
    """Equal up to rounding of the precision they are in; `size` of terms: it counts where they cancelled to nothing.

    >>> alike(torch.ones(2), torch.ones(2) + 1e-6), alike(torch.ones(2), torch.ones(2) + 1e-2)
    (True, False)
    >>> alike(torch.zeros(1), torch.zeros(1) + 1e-7), alike(torch.zeros(1), torch.zeros(1) + 1e-7, size=1.0)
    (False, True)
    """
    if found.shape != expected.shape:
        return False
    precision = torch.finfo(expected.dtype)
    largest, cancelled = float(expected.abs().max()), CANCELLED * precision.eps * size
    allowed = cancelled if largest <= cancelled else ROUNDING * precision.eps * max(largest, precision.tiny)
    return bool(((found - expected).abs() <= allowed).all()) or not bool(torch.isfinite(expected).all())

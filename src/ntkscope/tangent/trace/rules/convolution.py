"""Convolutions in one, two and three dimensions: stride, padding, dilation, groups, depthwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ntkscope.tangent.trace.rules.registry import Find, raw, rule
from ntkscope.tangent.trace.terms import Outer, Slot, Term, Vector


def spread(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """One number for every dimension, or the numbers as they came."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], count: Sequence[int]
) -> Tensor:
    """(b, channels, *size), padded already, to (b, channels, *kernel, *count): a view, nothing is copied.

    >>> import torch
    >>> patches(torch.arange(4.0).reshape(1, 1, 4), (2,), (1,), (1,), (3,))[0, 0].tolist()
    [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    """
    steps = x.stride()[2:]
    window = [step * d for step, d in zip(steps, dilation)]
    slide = [step * s for step, s in zip(steps, stride)]
    return x.as_strided((*x.shape[:2], *kernel, *count), (*x.stride()[:2], *window, *slide), x.storage_offset())


def unfold(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """(n, q, channels, *size) to the canonical (n, groups, q · positions, taps · channels/groups).

    Channels are brought innermost first: a row of the result then copies whole runs of memory.
    """
    n, q, channels, *size = x.shape
    flat = x.reshape(n * q * groups, channels // groups, *size)
    if any(any(sides) for sides in padding):
        flat = F.pad(flat, [side for sides in reversed(padding) for side in sides])
    flat = flat.movedim(1, -1).contiguous()
    full = flat.shape[1:-1]
    count = [(length - d * (k - 1) - 1) // s + 1 for length, k, s, d in zip(full, kernel, stride, dilation)]
    first, *steps, last = flat.stride()
    slide = [step * s for step, s in zip(steps, stride)]
    window = [step * d for step, d in zip(steps, dilation)]
    seen = flat.as_strided((len(flat), *count, *kernel, channels // groups), (first, *slide, *window, last))
    seen = seen.reshape(n, q, groups, prod(count), -1)
    return seen.squeeze(1) if q == 1 else seen.transpose(1, 2).flatten(2, 3)


def channels_outermost(formed: Tensor, taps: int) -> Tensor:
    """(…, taps · channels) to (…, channels · taps), as the weight of a convolution has it."""
    return formed.unflatten(-1, (taps, formed.shape[-1] // taps)).transpose(-1, -2).flatten(-2)


def grouped(value: Tensor, groups: int) -> Tensor:
    """(n, q, channels, *positions) to the canonical cotangent (n, groups, channels/groups, q · positions)."""
    n, q, channels = value.shape[:3]
    value = value.reshape(n, q, groups, channels // groups, -1)
    return value.squeeze(1) if q == 1 else value.permute(0, 2, 3, 1, 4).flatten(3)


def over_positions(cotangent: Tensor) -> Tensor:
    """Summed over all but the channels: (n, q, channels, *positions) to (n, channels)."""
    return cotangent.flatten(3).sum((1, 3)) if cotangent.dim() > 3 else cotangent.sum(1)


def bias_terms(slot: Slot | None) -> list[Term]:
    return [] if slot is None else [Vector(slot, None, 1, 1, None, over_positions)]


def sides(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Zeros put before and after each dimension; the strings "same" and "valid" as PyTorch reads them."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in spread(padding, len(kernel))]


@rule("input weight bias stride padding dilation groups", F.conv1d, F.conv2d, F.conv3d)
def convolution(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    """`∂/∂W[o, i·tap] = Σ_s ȳ[o, s] · x̃[i·tap, s]`, x̃ the patches under each output position, group by group."""
    x, weight = arguments["input"], arguments["weight"]
    dims = weight.dim() - 2
    slot, bias = find(weight), find(arguments.get("bias"))
    if x.dim() != dims + 2:  # no batch axis
        return []
    terms = bias_terms(bias)
    if slot is None:
        return terms
    kernel = tuple(weight.shape[2:])
    dilation = spread(arguments.get("dilation", 1), dims)
    groups = int(arguments.get("groups", 1))
    activations = partial(
        unfold,
        kernel=kernel,
        stride=spread(arguments.get("stride", 1), dims),
        padding=sides(arguments.get("padding", 0), kernel, dilation),
        dilation=dilation,
        groups=groups,
    )
    reorder = partial(channels_outermost, taps=prod(kernel))
    return [Outer(slot, raw(x), 1, 1, activations, partial(grouped, groups=groups), reorder=reorder), *terms]

"""Transposed convolutions: the roles of input and cotangent swap, the patches are taken from the cotangent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ntkscope.tangent.trace.rules.convolution import bias_terms, grouped, patches, spread
from ntkscope.tangent.trace.rules.registry import Find, raw, rule
from ntkscope.tangent.trace.terms import Outer, Term


def gather(
    cotangent: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    count: Sequence[int],
) -> Tensor:
    """(n, q, channels, *size of the output) to (n, groups, channels/groups · taps, q · input positions)."""
    n, q, channels, *size = cotangent.shape
    flat = cotangent.reshape(n * q, channels, *size)
    reach = [(c - 1) * s + d * (k - 1) + 1 for c, s, d, k in zip(count, stride, dilation, kernel)]
    pads = [(p, max(0, r - p - full)) for p, r, full in zip(padding, reach, size)]
    flat = F.pad(flat, [side for pair in reversed(pads) for side in pair])
    seen = patches(flat, kernel, stride, dilation, count).reshape(n, q, groups, -1, *count).flatten(4)
    return seen.squeeze(1) if q == 1 else seen.permute(0, 2, 3, 1, 4).flatten(3)


def positions_first(x: Tensor, groups: int) -> Tensor:
    """(n, q, channels, *positions) to the canonical activation (n, groups, q · positions, channels/groups)."""
    return grouped(x, groups).transpose(2, 3)


@rule(
    "input weight bias stride padding output_padding groups dilation",
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
)
def transposed_convolution(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    """`∂/∂W[i, o·tap] = Σ_s x[i, s] · ỹ[o·tap, s]`, ỹ the patches of the cotangent that input position s wrote to."""
    x, weight = arguments["input"], arguments["weight"]
    dims = weight.dim() - 2
    if x.dim() != dims + 2:
        return []
    terms = bias_terms(find(arguments.get("bias")))
    slot = find(weight)
    if slot is None:
        return terms
    groups = int(arguments.get("groups", 1))
    cotangents = partial(
        gather,
        kernel=tuple(weight.shape[2:]),
        stride=spread(arguments.get("stride", 1), dims),
        padding=spread(arguments.get("padding", 0), dims),
        dilation=spread(arguments.get("dilation", 1), dims),
        groups=groups,
        count=tuple(x.shape[2:]),
    )
    return [Outer(slot, raw(x), 1, 1, partial(positions_first, groups=groups), cotangents, transposed=True), *terms]

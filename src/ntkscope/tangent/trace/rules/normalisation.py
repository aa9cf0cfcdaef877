"""Scales and shifts of LayerNorm, RMSNorm, GroupNorm, InstanceNorm and of BatchNorm in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntkscope.tangent.trace.rules.convolution import over_positions
from ntkscope.tangent.trace.rules.registry import Find, raw, rule
from ntkscope.tangent.trace.terms import Term, Vector

Standardise = Callable[[Tensor], Tensor]


def trailing(value: Tensor) -> Tensor:
    """Parameters over the trailing axes: (n, q, *shape) to (n, p)."""
    return value.sum(1).flatten(1)


def folded(standardise: Standardise, x: Tensor) -> Tensor:
    """`standardise` on (n, q, …) as the call saw it, samples and what is folded beside them in one axis."""
    return standardise(x.flatten(0, 1)).view_as(x)


def scale_and_shift(
    x: Tensor,
    lead: int,
    find: Find,
    arguments: Mapping[str, Any],
    reduce: Callable[..., Tensor],
    standardise: Standardise,
) -> list[Term]:
    """`y = w x̂ + b`, so `∂/∂w = Σ ȳ x̂` and `∂/∂b = Σ ȳ`."""
    terms: list[Term] = []
    if (slot := find(arguments.get("weight"))) is not None:
        terms.append(Vector(slot, raw(x), lead, lead, partial(folded, standardise), reduce))
    if (slot := find(arguments.get("bias"))) is not None:
        terms.append(Vector(slot, None, lead, lead, None, reduce))
    return terms


@rule("input normalized_shape weight bias eps", F.layer_norm, torch.layer_norm)
def layer_norm(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    x, shape = arguments["input"], tuple(arguments["normalized_shape"])
    standardise = partial(F.layer_norm, normalized_shape=shape, eps=arguments.get("eps", 1e-5))
    return scale_and_shift(x, x.dim() - len(shape), find, arguments, trailing, standardise)


@rule("input normalized_shape weight eps", F.rms_norm, torch.rms_norm)
def rms_norm(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    x, shape = arguments["input"], tuple(arguments["normalized_shape"])
    standardise = partial(F.rms_norm, normalized_shape=shape, eps=arguments.get("eps"))
    return scale_and_shift(x, x.dim() - len(shape), find, arguments, trailing, standardise)


@rule("input num_groups weight bias eps", F.group_norm, torch.group_norm)
def group_norm(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    standardise = partial(F.group_norm, num_groups=arguments["num_groups"], eps=arguments.get("eps", 1e-5))
    return scale_and_shift(arguments["input"], 1, find, arguments, over_positions, standardise)


@rule("input running_mean running_var weight bias use_input_stats momentum eps", F.instance_norm)
@rule("input weight bias running_mean running_var use_input_stats momentum eps", torch.instance_norm)
def instance_norm(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    standardise = partial(
        F.instance_norm,
        running_mean=arguments.get("running_mean"),
        running_var=arguments.get("running_var"),
        use_input_stats=arguments.get("use_input_stats", True),
        momentum=0.0,
        eps=arguments.get("eps", 1e-5),
    )
    return scale_and_shift(arguments["input"], 1, find, arguments, over_positions, standardise)


@rule("input running_mean running_var weight bias training momentum eps", F.batch_norm)
@rule("input weight bias running_mean running_var training momentum eps", torch.batch_norm)
def batch_norm(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    """Evaluation mode only: with batch statistics one sample's output depends on the others."""
    if arguments.get("training", False):
        return []
    standardise = partial(
        F.batch_norm,
        running_mean=arguments["running_mean"],
        running_var=arguments["running_var"],
        eps=arguments.get("eps", 1e-5),
    )
    return scale_and_shift(arguments["input"], 1, find, arguments, over_positions, standardise)

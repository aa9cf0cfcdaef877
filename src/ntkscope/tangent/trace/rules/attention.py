"""`nn.MultiheadAttention`: its packed projection and output projection, rewritten as calls that have rules."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntkscope.tangent.trace.rules.registry import rewrite

SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


@rewrite(F.multi_head_attention_forward)
def multi_head_attention(*args: Any, **kwargs: Any) -> Any:
    """The same attention with its projections made outside.

    Queries, keys and values are projected by plain `F.linear` calls on rows of the packed weight, the attention itself
    runs with identity projections (products with ones and zeros, so exact), and the output projection follows. Extra
    cost: four products with an identity matrix.
    """
    bound = SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    call = bound.arguments
    query, key, value = call["query"], call["key"], call["value"]
    width = query.shape[-1]
    bias = call["in_proj_bias"]
    parts = (None, None, None) if bias is None else tuple(bias.chunk(3))
    if call["use_separate_proj_weight"]:
        weights = (call["q_proj_weight"], call["k_proj_weight"], call["v_proj_weight"])
    else:
        weights = tuple(call["in_proj_weight"].chunk(3))
    eye = torch.eye(width, dtype=query.dtype, device=query.device)
    call["query"], call["key"], call["value"] = map(project, (query, key, value), weights, parts)
    call.update(in_proj_weight=eye.repeat(3, 1), in_proj_bias=None, use_separate_proj_weight=False)
    call.update(q_proj_weight=None, k_proj_weight=None, v_proj_weight=None)
    out_weight, out_bias = call["out_proj_weight"], call["out_proj_bias"]
    call.update(out_proj_weight=eye, out_proj_bias=None)
    output, attention = F.multi_head_attention_forward(*bound.args, **bound.kwargs)
    return F.linear(output, out_weight, out_bias), attention

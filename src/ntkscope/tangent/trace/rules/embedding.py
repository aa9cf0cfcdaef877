"""Embedding tables: each index picks a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F

from ntkscope.tangent.trace.rules.registry import Find, raw, rule
from ntkscope.tangent.trace.terms import Lookup, Term


@rule("input weight padding_idx max_norm norm_type scale_grad_by_freq sparse", F.embedding)
def embedding(arguments: Mapping[str, Any], find: Find) -> list[Term]:
    """`∂/∂W = Σ_s e_{id(s)} ⊗ ȳ_s`; PyTorch gives the padding row no gradient, so neither do we."""
    slot = find(arguments["weight"])
    if slot is None or slot.transposed:
        return []
    if arguments.get("max_norm") is not None or arguments.get("scale_grad_by_freq"):
        return []  # the first rewrites the table, the second makes a sample's gradient depend on the batch
    ids, padding, rows = arguments["input"], arguments.get("padding_idx"), arguments["weight"].shape[0]
    if padding is not None and padding < 0:
        padding += rows
    return [Lookup(slot, raw(ids), ids.dim(), ids.dim(), rows, padding)]

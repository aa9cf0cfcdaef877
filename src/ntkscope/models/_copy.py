"""Copies of a model whose weights are to change."""

from __future__ import annotations

from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.model.copies import duplicate, shared


def own_copy(model: nn.Module, purpose: str) -> nn.Module:
    """A copy that uses nothing of the model's own parameters and buffers; refused, saying what for, where there is none."""
    made = duplicate(model)
    lost = shared(made, model)
    if lost:
        raise UsageError(
            f"a copy of {type(model).__name__} would still use {', '.join(lost)} of the model itself (a function reads a"
            f" global or a weak reference), and {purpose}; expected functions that reach the model by what they are given"
        )
    return made

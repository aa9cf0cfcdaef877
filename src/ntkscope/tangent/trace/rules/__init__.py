"""One layer kind per file: what its parameters see of one input."""

from ntkscope.tangent.trace.rules import (
    attention,
    broadcast,
    convolution,
    embedding,
    linear,
    matmul,
    normalisation,
    transposed_convolution,
)
from ntkscope.tangent.trace.rules.registry import REWRITES, RULES

__all__ = [
    "REWRITES",
    "RULES",
    "attention",
    "broadcast",
    "convolution",
    "embedding",
    "linear",
    "matmul",
    "normalisation",
    "transposed_convolution",
]

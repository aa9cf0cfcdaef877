"""One layer kind per file: what its parameters see of one input."""

from ntkscope.tangent.rules import (
    attention,
    broadcast,
    convolution,
    embedding,
    linear,
    matmul,
    normalisation,
    transposed_convolution,
)
from ntkscope.tangent.rules.registry import REWRITES, RULES

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

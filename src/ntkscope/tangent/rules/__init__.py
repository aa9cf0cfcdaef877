"""One layer kind per file: what its parameters see of one input."""

from ntkscope.tangent.rules import (
    attention,
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
    "convolution",
    "embedding",
    "linear",
    "matmul",
    "normalisation",
    "transposed_convolution",
]

"""Whether CUDA may round float32 products to TF32, and choose sums in any order, for the length of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def tensor_cores(allowed: bool) -> Iterator[None]:
    """Let CUDA round float32 products to TF32, or forbid it; PyTorch's own settings come back afterwards."""
    if not torch.cuda.is_available():
        yield
        return
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = matmul.fp32_precision, conv.fp32_precision
    matmul.fp32_precision = conv.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision, conv.fp32_precision = before


@contextlib.contextmanager
def any_order(device: torch.device) -> Iterator[None]:
    """Let CUDA choose convolutions that do not repeat their sums bit by bit: for what is compared and then dropped."""
    if device.type != "cuda":  # where threads work side by side, and the setting means nothing
        yield
        return
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before

"""How many bits the products of an engine run keep; accumulation is never below float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from ntkscope.core import UsageError

PRECISIONS = ("exact", "tf32", "bf16", "fp16")


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


class Precision:
    """The road features and products take.

    | name | network | features stored as | products |
    | --- | --- | --- | --- |
    | exact | its own dtype, no TF32 | its own dtype | its own dtype |
    | tf32 | TF32 tensor cores | float32 | TF32, float32 sums |
    | bf16 | TF32 tensor cores | bfloat16, formed from bfloat16 factors on a GPU | bfloat16, float32 sums |
    | fp16 | TF32 tensor cores | float16, scaled per sample | float16, float32 sums |
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        if name not in PRECISIONS:
            raise UsageError(f"precision {name!r} came; expected one of {', '.join(PRECISIONS)}")
        if name != "exact" and dtype != torch.float32:
            raise UsageError(f"precision {name!r} came with dtype {dtype}; expected float32 (or precision='exact')")
        self.name = name
        self.storage = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, dtype)

    def context(self) -> contextlib.AbstractContextManager[None]:
        return tensor_cores(self.name != "exact")

    def factor(self, value: Tensor) -> Tensor:
        """A factor of a gradient as it enters the product that forms it: on a GPU already as short as the result."""
        return value.bfloat16() if self.name == "bf16" and value.is_cuda else value

    def store(self, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """`value` (n, …) as it is stored, and the (n,) factors it was divided by (fp16 only, powers of two)."""
        if self.name != "fp16":
            return value.to(self.storage), None
        largest = value.abs().flatten(1).amax(1).clamp_min(torch.finfo(value.dtype).tiny)
        scale = torch.exp2(torch.ceil(torch.log2(largest)))
        return (value / scale.view(-1, *[1] * (value.dim() - 1))).to(self.storage), scale

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """`left @ rightᵀ` of (n, k) and (m, k), float32 or wider."""
        if left.dtype in (torch.float32, torch.float64):
            return left @ right.T
        if left.is_cuda:
            return torch.mm(left, right.T, out_dtype=torch.float32)
        return left.float() @ right.float().T

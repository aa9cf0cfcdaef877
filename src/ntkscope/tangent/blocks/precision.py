"""How many bits the products of an engine run keep; accumulation is never below float32."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.machine.tensor_cores import tensor_cores

PRECISIONS = ("exact", "tf32", "bf16", "fp16")


class Precision:
    """The method features and products take.

    | name | forward pass | backward passes | features | products |
    | --- | --- | --- | --- | --- |
    | exact | its own dtype | its own dtype | its own dtype | its own dtype |
    | tf32 | float32 | TF32 | float32, formed in TF32 | TF32, float32 sums |
    | bf16 | float32 | TF32 | bfloat16, formed from bfloat16 factors | bfloat16, float32 sums |
    | fp16 | float32 | TF32 | float16, scaled per sample, formed in TF32 | float16, float32 sums |

    The forward pass is never shortened: an activation that lands on the other side of a kink changes the gradient as a
    whole, while the rounding of cotangents and features averages out in the products. Backward passes of a *sum* of outputs
    are not shortened either, since its terms may cancel (`captured`).
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        if name not in PRECISIONS:
            raise UsageError(f"got precision={name!r}; expected one of {', '.join(PRECISIONS)}")
        if name != "exact" and dtype != torch.float32:
            raise UsageError(f"got precision={name!r} with dtype {dtype}; expected float32 (or precision='exact')")
        self.name = name
        self.storage = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, dtype)
        self.factors = torch.bfloat16 if name == "bf16" else dtype  # what activations and cotangents are kept in

    def context(self) -> contextlib.AbstractContextManager[None]:
        return tensor_cores(self.name != "exact")

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

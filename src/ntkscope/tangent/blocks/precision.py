"""How many bits the products of an engine run keep; accumulation is never below float32."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.machine.tensor_cores import tensor_cores
from ntkscope.tangent.blocks import split_products

PRECISIONS = ("exact", "float32", "tf32", "bf16", "fp16")
SHORT = ("tf32", "bf16", "fp16")  # those that keep fewer bits than float32


class Precision:
    """The method features and products take.

    | name | forward pass | backward passes | features | products |
    | --- | --- | --- | --- | --- |
    | exact | its own dtype | its own dtype | its own dtype | its own dtype; of float32 on a GPU `split_products` |
    | float32 | float32 | float32 | float32 | float32 |
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
        return tensor_cores(self.name in SHORT)

    def splits(self, values: Tensor) -> bool:
        """Whether products of such numbers are made on tensor cores, each number in two halves."""
        return self.name == "exact" and values.dtype == torch.float32 and split_products.available(values.device)

    def splits_calls(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether affine maps of a model may be made so: full float32 is what other precisions ask of a forward pass too."""
        return self.name != "float32" and dtype == torch.float32 and split_products.available(device)

    def store(self, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """`value` (n, …) as it is stored, and the (n,) factors it was divided by (fp16 only, powers of two)."""
        if self.name != "fp16":
            return value.to(self.storage), None
        largest = value.abs().flatten(1).amax(1).clamp_min(torch.finfo(value.dtype).tiny)
        scale = torch.exp2(torch.ceil(torch.log2(largest)))
        return (value / scale.view(-1, *[1] * (value.dim() - 1))).to(self.storage), scale

    def multiply(self, left: Tensor, right: Tensor, out: Tensor | None) -> Tensor:
        """`left @ right` of (n, rows, k) and (n, k, columns), in their own numbers."""
        rows, inner, columns = *left.shape[1:], right.shape[2]
        if self.splits(left) and split_products.worthwhile(rows, columns, inner, len(left)):
            out = left.new_empty(len(left), rows, columns) if out is None else out
            return split_products.product(left, right.transpose(1, 2), out=out)
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """`left @ rightᵀ` of (n, k) and (m, k), float32 or wider."""
        if left.dtype in (torch.float32, torch.float64):
            return left @ right.T
        if left.is_cuda:
            return _in_eights(left, right)
        return left.float() @ right.float().T


def _in_eights(left: Tensor, right: Tensor) -> Tensor:
    """`left @ rightᵀ` of 16-bit numbers: multiples of eight rows and columns, of which a GPU's products are up to seven times
    faster, and the rest."""
    n, m = len(left), len(right)
    if n % 8 == m % 8 == 0:
        return torch.mm(left, right.T, out_dtype=torch.float32)
    out = torch.empty(n, m, dtype=torch.float32, device=left.device)
    for rows in (slice(0, n - n % 8), slice(n - n % 8, n)):
        for columns in (slice(0, m - m % 8), slice(m - m % 8, m)):
            out[rows, columns] = torch.mm(left[rows], right[columns].T, out_dtype=torch.float32)
    return out

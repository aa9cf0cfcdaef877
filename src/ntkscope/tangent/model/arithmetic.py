"""Which floating-point types a forward pass computes in, and which numbers their products can hold.

A model in float64 may have a float32 part of its own. Tolerances follow the shortest of them, since sums that are rounded to
float32 somewhere agree to float32 and no better.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ntkscope.core import NumericalError

# log2 of the largest number of gradients whose products keep their digits, and of the powers of two they can be multiplied by
RANGES = {torch.float64: (-400, 400, 1000), torch.float16: (-6, 4, 14)}
USUAL = (-40, 40, 120)


class Kinds(TorchFunctionMode):
    """Collects the types of all results that have a gradient."""

    def __init__(self, kinds: set[torch.dtype]) -> None:
        super().__init__()
        self.kinds = kinds

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.requires_grad and value.is_floating_point():
                self.kinds.add(value.dtype)
        return result


def unit_for(size: float, dtype: torch.dtype) -> float:
    """The power of two by which gradients of this size are multiplied so that their products stay in range: 1 but for extremes.

    >>> unit_for(0.3, torch.float32), unit_for(2.0**-60, torch.float32)
    (1.0, 1125899906842624.0)
    """
    low, high, most = RANGES.get(dtype, USUAL)
    if not 0 < size < math.inf or low <= (at := math.log2(size)) <= high:
        return 1.0
    return 2.0 ** max(-most, min(most, round((low if at < low else high) / 4 - at)))


def largest_number(*tensors: Tensor) -> float:
    """The largest magnitude in several tensors."""
    return max((float(torch.linalg.vector_norm(t, torch.inf)) for t in tensors if t.numel()), default=0.0)


def check_range(square: float, dtype: torch.dtype, unit: float = 1.0) -> None:
    """Refuse a kernel whose largest products, `square / unit²`, are beyond what its numbers hold; zeros are no such."""
    info = torch.finfo(dtype)
    low, high = math.log2(info.tiny) + math.log2(info.eps) / 2, math.log2(info.max)
    at = math.log2(square) - 2 * math.log2(unit) if 0 < square < math.inf else square * math.inf if square else low
    if not low <= at <= high:
        kind, ten = str(dtype).removeprefix("torch."), math.log10(2)
        about = f"about 1e{at * ten:.0f}" if math.isfinite(at) else "infinite"
        raise NumericalError(
            f"the largest products of this kernel are {about}, beyond the range of {kind} (1e{low * ten:.0f} to"
            f" 1e{high * ten:.0f}); expected a kernel that {kind} can hold: use dtype=torch.float64, the kernel of cosines"
            " ('trntk'), or a model whose outputs are multiplied by a constant c, which multiplies the kernel by c²"
        )


def check_feature_range(*sides: Tensor | None) -> None:
    """The same for rows of features, whose products are formed when they are asked for."""
    found = [side for side in sides if side is not None]
    largest = largest_number(*found)
    if 0 < largest < math.inf:
        norms = [float(torch.linalg.vector_norm(rows / largest, dim=1).max()) for rows in found if rows.numel()]
        check_range(1.0, found[0].dtype, 1 / largest)
        check_range(max(norms) ** 2, found[0].dtype, 1 / largest)
    elif largest:
        check_range(math.inf, found[0].dtype)

"""Which floating-point types a forward pass computes in: a model in float64 may have a float32 part of its own.

Tolerances follow the shortest of them, since sums that are rounded to float32 somewhere agree to float32 and no better.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


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

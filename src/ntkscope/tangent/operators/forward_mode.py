"""Forward-mode differentiation, one call at a time: PyTorch's levels of dual numbers belong to the process, not to a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ntkscope.core import Params
from ntkscope.core.machine.threads import Together

MATH = Together(lambda: sdpa_kernel(SDPBackend.MATH))  # fused attention has first derivatives alone
_ONE = threading.RLock()


def jvp(function: Callable[[Params], Tensor], at: Params, along: Params) -> tuple[Tensor, Tensor]:
    """`function(at)` and its derivative along `along`."""
    with _ONE:
        made = torch.func.jvp(function, (dict(at),), (dict(along),))
    return made[0], made[1]

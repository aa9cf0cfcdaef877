"""`J u`: by forward mode, one call at a time, since PyTorch's levels of dual numbers belong to the process and not to a thread;
or by two backward passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

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


def twice_back(values: Tensor, leaves: Sequence[Tensor], along: Sequence[Tensor]) -> Tensor:
    """`J u` as the derivative of `Jᵀ v` by v; the graph of the values stays."""
    weights = torch.zeros_like(values, requires_grad=True)
    grads = torch.autograd.grad(values, leaves, weights, create_graph=True, allow_unused=True)
    pairs = [(g.to_dense(), u) for g, u in zip(grads, along) if g is not None and g.requires_grad]
    if not pairs:
        return torch.zeros_like(values)
    (moved,) = torch.autograd.grad(
        [g for g, _ in pairs], [weights], [u for _, u in pairs], retain_graph=True, materialize_grads=True
    )
    return moved

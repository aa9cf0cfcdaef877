"""The standard NTK of wide networks as PyTorch initialises them, by plain autograd, and the limit held to their mean."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ntkscope import infinite

STANDARD_ERRORS = 5.0
FINITE_WIDTH = 6.0  # the mean itself is off by a few 1/width
Build = Callable[[int], nn.Module]


def drawn(build: Build, width: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(width).double()


def tangent(net: nn.Module, x: Tensor) -> Tensor:
    """⟨∇f(x), ∇f(x′)⟩ of a network with one output, by plain autograd."""
    rows = []
    for one in x:
        chosen = [p for p in net.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(net(one[None]).sum(), chosen, allow_unused=True)
        rows.append(
            torch.cat(
                [torch.zeros(p.numel()).double() if g is None else g.flatten() for p, g in zip(chosen, gradients)]
            )
        )
    J = torch.stack(rows)
    return J @ J.T


def held_to_monte_carlo(build: Build, x: Tensor, width: int, seeds: int) -> None:
    """The standard NTK against the mean over networks as PyTorch initialises them, with the widths they have."""
    expected = infinite.kernel(drawn(build, width, 0), x, parametrization="standard", init="default").dense()
    draws = torch.stack([tangent(drawn(build, width, seed), x) for seed in range(seeds)])
    allowed = STANDARD_ERRORS * draws.std(0) / math.sqrt(seeds) + FINITE_WIDTH / width * expected.abs().max()
    off = (draws.mean(0) - expected).abs() / allowed
    assert float(off.max()) <= 1, (draws.mean(0), expected)

"""Projected kernels of networks whose parameters are of several floating-point types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from oracles.closeness import relative_error
from strategies.networks import noise, randomize


class Mixed(nn.Module):
    """A float32 body with a float64 head."""

    def __init__(self, convolution: bool) -> None:
        super().__init__()
        body: list[nn.Module] = [nn.Conv1d(1, 4, 3), nn.Tanh(), nn.Flatten()] if convolution else [nn.Linear(8, 24)]
        self.body, self.head = nn.Sequential(*body), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.float())).double())


@pytest.mark.parametrize("options", [{}, {"kind": "gaussian"}, {"kind": "sparse"}, {"kind": "kronecker"}], ids=str)
@pytest.mark.parametrize("convolution", [False, True])
def test_a_projection_of_mixed_parameters_tends_to_the_exact_kernel(convolution: bool, options: dict[str, Any]) -> None:
    model = randomize(Mixed(convolution))
    model.body.float()
    model.head.double()
    x = noise(6, 1, 8) if convolution else noise(6, 8)
    exact = ns.kernel("trntk0", model, x)
    near = ns.kernel("proj-trntk", model, x, dim=8192, normalize=False, **options)
    assert near.dtype == exact.dtype == torch.float64
    assert relative_error(near.dense(), exact.dense()) <= 0.1  # 1/√8192 times a few

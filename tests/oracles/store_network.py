"""A network and data for the command line: `store_network:network`, `store_network:images`, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

N = 31  # no multiple of a tile


def network(shift: float = 0.0) -> nn.Module:
    """A small network whose features take far more than it does, so that little memory makes many tiles; `shift` moves a
    weight."""
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.Tanh(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(288, 5)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        next(model.parameters()).view(-1)[0] += shift
    return model.eval()


def images(shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Training and test inputs; `shift` moves one pixel."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N + 17, 1, 8, 8, generator=generator, dtype=torch.float64)
    x[3, 0, 0, 0] += shift
    return x[:N], x[N:]

"""Multiplication by a constant."""

from __future__ import annotations

from torch import Tensor, nn


class Scale(nn.Module):
    """y = factor · x, with nothing to train: where a parametrisation keeps its scales outside the parameters."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def extra_repr(self) -> str:
        return f"factor={self.factor:.6g}"

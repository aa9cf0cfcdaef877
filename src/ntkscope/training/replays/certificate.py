"""What a replay was compared with: retrainings, plain second derivatives, float64, and the recorded end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ReplayCertificate:
    """`predicted`, `measured`: how k functions change along random directions of the items' weights, by the derivative and by
    central differences of two retrainings of size `step`.

    `products`: how far products with the second derivative were from plain ones at most, of their norm; `rounding`: plain
    ones from float64, where a ReLU may be on its other side; `differences`: those from differences of gradients; NaN where a
    network takes no float64. `reproduced`: whether the training, run again, ended in the recorded bits (None where no end was
    recorded, or items were weighted). `way`: how products were computed, and why not in the fastest way.
    """

    predicted: Float[Tensor, "d k"]
    measured: Float[Tensor, "d k"]
    step: float
    products: float
    rounding: float
    differences: float
    reproduced: bool | None
    way: str

    @property
    def relative_error(self) -> float:
        """The distance of predicted from measured, of the norm of measured; NaN without directions."""
        if not self.measured.numel():
            return float("nan")
        return float((self.predicted - self.measured).norm() / self.measured.norm())

    @property
    def correlation(self) -> float:
        """Of predicted and measured over all functions and directions; NaN with fewer than two."""
        both = torch.stack([self.predicted.flatten(), self.measured.flatten()])
        return float(torch.corrcoef(both)[0, 1]) if both.shape[1] > 1 else float("nan")

    def __repr__(self) -> str:
        return (
            f"ReplayCertificate(relative error {self.relative_error:.2g}, correlation {self.correlation:.4f} against"
            f" {len(self.measured)} pairs of retrainings; products {self.products:.1g}, rounding {self.rounding:.1g},"
            f" differences {self.differences:.1g})"
        )

"""Mean cross-entropies as functions of logits: value, gradient and curvature, for softmax and for one-vs-rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

Curvature: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Softmax:
    """`Σ_i v_i (logsumexp(f_i) - f_i·y_i)` for one-hot rows y and weights v that sum to one."""

    targets: Float[Tensor, "n c"]
    weights: Float[Tensor, "n 1"]

    def value(self, logits: Float[Tensor, "n c"]) -> Tensor:
        fitted = (logits * self.targets).sum(1, keepdim=True)
        return (self.weights * (torch.logsumexp(logits, 1, keepdim=True) - fitted)).sum()

    def residual(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """The gradient with respect to the logits: `v (p - y)`."""
        return self.weights * (torch.softmax(logits, 1) - self.targets)

    def curvature(self, logits: Float[Tensor, "n c"]) -> tuple[Float[Tensor, "n c"], Curvature]:
        """The diagonal of each class's second derivative, `v p (1 - p)`, and the map `R ↦ v (p∘R - p (p·R))`."""
        p = torch.softmax(logits, 1)
        scaled = self.weights * p
        return scaled * (1 - p), lambda r: scaled * (r - (p * r).sum(1, keepdim=True))

    def blocks(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
        """Each point's second derivative: `v (diag(p) - p pᵀ)`."""
        p = torch.softmax(logits, 1)
        return self.weights[:, :, None] * (torch.diag_embed(p) - p[:, :, None] * p[:, None, :])


@dataclass(frozen=True, eq=False)
class OneVsRest:
    """`Σ_i v_i Σ_c (softplus(f_ic) - f_ic y_ic)`: an independent logistic loss for each column."""

    targets: Float[Tensor, "n c"]
    weights: Float[Tensor, "n 1"]

    def value(self, logits: Float[Tensor, "n c"]) -> Tensor:
        return (self.weights * (softplus(logits, threshold=50.0) - logits * self.targets)).sum()

    def residual(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return self.weights * (torch.sigmoid(logits) - self.targets)

    def curvature(self, logits: Float[Tensor, "n c"]) -> tuple[Float[Tensor, "n c"], Curvature]:
        p = torch.sigmoid(logits)
        diagonal = self.weights * p * (1 - p)
        return diagonal, lambda r: diagonal * r

    def blocks(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
        return torch.diag_embed(self.curvature(logits)[0])


Loss: TypeAlias = Softmax | OneVsRest

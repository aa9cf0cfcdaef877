"""Losses as functions of logits: value, gradient and curvature, of softmax, one-vs-rest logistic and squared hinge.

A kernel of large values fits its labels so well that the loss of a point can be 1e-20. Every formula here keeps its
relative accuracy there: nothing is subtracted from a probability near one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from ntkscope.core.arguments import one_hot

Curvature: TypeAlias = Callable[[Tensor], Tensor]
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class Softmax:
    """`Σ_i v_i (logsumexp(f_i) - f_i·y_i)` for one-hot rows y and weights v that sum to one."""

    targets: Float[Tensor, "n c"]
    weights: Float[Tensor, "n 1"]

    def value(self, logits: Float[Tensor, "n c"]) -> Tensor:
        top, at = logits.max(1, keepdim=True)
        others = (logits - top).exp().scatter(1, at, 0.0).sum(1, keepdim=True)
        behind = ((top - logits) * self.targets).sum(
            1, keepdim=True
        )  # exactly 0 where the label's logit is the largest
        return (self.weights * (others.log1p() + behind)).sum()

    def residual(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """The gradient with respect to the logits: `v (p - y)`."""
        p, rest, _ = probabilities(logits)
        return self.weights * torch.where(self.targets > 0, -rest, p)

    def curvature(self, logits: Float[Tensor, "n c"]) -> tuple[Float[Tensor, "n c"], Curvature]:
        """The diagonal of each class's second derivative, `v p (1 - p)`, and the map `R ↦ v (p∘R - p (p·R))`."""
        p, rest, at = probabilities(logits)
        scaled, others = self.weights * p, p.scatter(1, at, 0.0)

        def apply(r: Tensor) -> Tensor:
            r = r - r.gather(1, at)  # a common shift has no curvature; this one removes the likeliest class from p·R
            return scaled * (r - (others * r).sum(1, keepdim=True))

        return scaled * rest, apply

    def blocks(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
        """Each point's second derivative: `v (diag(p) - p pᵀ)`."""
        p, rest, _ = probabilities(logits)
        blocks = -p[:, :, None] * p[:, None, :]
        blocks.diagonal(dim1=1, dim2=2).copy_(p * rest)
        return self.weights[:, :, None] * blocks

    def fenchel_young(self, logits: Float[Tensor, "n c"], dual: Float[Tensor, "n c"]) -> Tensor:
        """`loss(f) + loss*(u) - f·u = Σ_i v_i KL(y_i + u_i/v_i ‖ p_i)`; infinite where `y + u/v` is no distribution."""
        p, rest, _ = probabilities(logits)
        move = dual / self.weights.clamp_min(TINY) - torch.where(self.targets > 0, -rest, p)  # q - p
        q = p + move
        bad = (q < 0) & (self.weights > 0)
        off = (move.sum(1).abs() > 1e-12 * move.abs().sum(1) + 1e-15) & (self.weights[:, 0] > 0)
        if bool(bad.any() or off.any()):
            return torch.tensor(float("inf"), dtype=logits.dtype)
        return (self.weights * _divergence(q, p, move)).sum()


class _ByColumn:
    """What losses that are independent in each column share."""

    def curvature(self, logits: Float[Tensor, "n c"]) -> tuple[Float[Tensor, "n c"], Curvature]:
        diagonal = self._diagonal(logits)
        return diagonal, lambda r: diagonal * r

    def blocks(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
        return torch.diag_embed(self._diagonal(logits))

    def _diagonal(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class OneVsRest(_ByColumn):
    """`Σ_i v_i Σ_c (softplus(f_ic) - f_ic y_ic)`: an independent logistic loss for each column."""

    targets: Float[Tensor, "n c"]
    weights: Float[Tensor, "n 1"]

    @property
    def _signs(self) -> Tensor:
        return 1 - 2 * self.targets

    def value(self, logits: Float[Tensor, "n c"]) -> Tensor:
        return (self.weights * softplus(self._signs * logits, threshold=50.0)).sum()

    def residual(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return self.weights * self._signs * torch.sigmoid(self._signs * logits)

    def _diagonal(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return self.weights * torch.sigmoid(logits) * torch.sigmoid(-logits)

    def fenchel_young(self, logits: Float[Tensor, "n c"], dual: Float[Tensor, "n c"]) -> Tensor:
        """`Σ_i v_i Σ_c KL(y + u/v ‖ p)` of two outcomes each."""
        wrong = torch.sigmoid(self._signs * logits)  # the probability of the wrong class
        move = self._signs * dual / self.weights.clamp_min(TINY) - wrong
        q = wrong + move
        if bool((((q < 0) | (q > 1)) & (self.weights > 0)).any()):
            return torch.tensor(float("inf"), dtype=logits.dtype)
        right = torch.sigmoid(-self._signs * logits)
        return (self.weights * (_divergence(q, wrong, move) + _divergence(right - move, right, -move))).sum()


@dataclass(frozen=True, eq=False)
class SquaredHinge(_ByColumn):
    """`Σ_i v_i Σ_c max(0, 1 - t_ic f_ic)²` with signs t = ±1: an independent margin for each column."""

    targets: Float[Tensor, "n c"]
    weights: Float[Tensor, "n 1"]

    @property
    def _signs(self) -> Tensor:
        return 2 * self.targets - 1

    def _short(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """By how much each margin falls short of 1."""
        return (1 - self._signs * logits).clamp_min(0)

    def value(self, logits: Float[Tensor, "n c"]) -> Tensor:
        return (self.weights * self._short(logits).square()).sum()

    def residual(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return -2 * self.weights * self._signs * self._short(logits)

    def _diagonal(self, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """`2 v` where the margin falls short; the second derivative jumps there, and this is one of its values."""
        return 2 * self.weights * (self._short(logits) > 0)

    def fenchel_young(self, logits: Float[Tensor, "n c"], dual: Float[Tensor, "n c"]) -> Tensor:
        """`Σ v (s² + a²/4 - a (1 - t f))` with s the shortfall and `a = -t u / v`; infinite where `a < 0`."""
        pressed = -self._signs * dual / self.weights.clamp_min(TINY)
        if bool(((pressed < 0) & (self.weights > 0)).any()):
            return torch.tensor(float("inf"), dtype=logits.dtype)
        margin = 1 - self._signs * logits
        return (self.weights * (margin.clamp_min(0).square() + pressed.square() / 4 - pressed * margin)).sum()


Loss: TypeAlias = Softmax | OneVsRest | SquaredHinge


def logistic_loss(numbers: Tensor | np.ndarray, classes: int, weights: Float[Tensor, "n 1"], multi_class: str) -> Loss:
    """The cross-entropy of class numbers; one-vs-rest of two classes is one loss, of the difference of their logits."""
    targets = one_hot(numbers, classes, weights.device)
    if multi_class == "multinomial":
        return Softmax(targets, weights)
    return OneVsRest(targets[:, 1:] if classes == 2 else targets, weights)


def probabilities(logits: Float[Tensor, "n c"]) -> tuple[Tensor, Tensor, Tensor]:
    """`p = softmax(f)`, `1 - p`, each to full relative accuracy, and where the largest of each row is, (n, 1)."""
    p = torch.softmax(logits, 1)
    at = p.argmax(1, keepdim=True)
    others = p.scatter(1, at, 0.0).sum(1, keepdim=True)
    return p, (1 - p).scatter(1, at, others), at


def _divergence(q: Tensor, p: Tensor, move: Tensor) -> Tensor:
    """`q log(q/p) - (q - p)`, each at least 0, with `move = q - p` small; by its series where the logarithm cancels."""
    ratio = move / p.clamp_min(TINY)
    series = p * ratio.square() * (0.5 - ratio / 6)
    return torch.where(ratio.abs() < 1e-4, series, (torch.special.xlogy(q, q / p.clamp_min(TINY)) - move).clamp_min(0))

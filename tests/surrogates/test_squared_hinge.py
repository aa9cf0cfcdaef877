"""The squared hinge: its derivatives against autograd, and its Fenchel–Young gap."""

from __future__ import annotations

import torch
from torch import Tensor

from ntkscope.surrogates.solvers.losses import SquaredHinge


def drawn(seed: int) -> tuple[SquaredHinge, Tensor]:
    g = torch.Generator().manual_seed(seed)
    targets = torch.nn.functional.one_hot(torch.randint(0, 3, (9,), generator=g), 3).double()
    weights = torch.rand(9, 1, generator=g, dtype=torch.float64)
    return SquaredHinge(targets, weights), torch.randn(9, 3, generator=g, dtype=torch.float64)


def plain(loss: SquaredHinge, logits: Tensor) -> Tensor:
    """The definition, entry by entry."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(logits)):
        for c in range(3):
            sign = 1 if loss.targets[i, c] else -1
            total = total + loss.weights[i, 0] * torch.relu(1 - sign * logits[i, c]) ** 2
    return total


def test_derivatives_are_those_of_autograd() -> None:
    for seed in range(5):
        loss, logits = drawn(seed)
        leaf = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(plain(loss, leaf), leaf)
        torch.testing.assert_close(loss.value(logits), plain(loss, logits))
        torch.testing.assert_close(loss.residual(logits), gradient)
        hessian = torch.autograd.functional.hessian(lambda f, loss=loss: plain(loss, f), logits)
        diagonal, apply = loss.curvature(logits)
        torch.testing.assert_close(diagonal.flatten().diag(), hessian.reshape(27, 27))
        torch.testing.assert_close(apply(logits), diagonal * logits)
        torch.testing.assert_close(loss.blocks(logits), torch.diag_embed(diagonal))


def test_the_gap_is_zero_at_the_gradient_and_nowhere_negative() -> None:
    for seed in range(5):
        loss, logits = drawn(seed)
        own = loss.residual(logits)
        assert abs(float(loss.fenchel_young(logits, own))) < 1e-12
        assert float(loss.fenchel_young(logits + 1, own)) > 0
        assert float(loss.fenchel_young(logits, -own)) == float("inf")

"""The reference: plain autograd on the caller's own model, with nothing of the engine between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.subject import Subject

Heads = Callable[[Tensor], Tensor]


def dense(gradient: Tensor | None, leaf: Tensor) -> Tensor:
    """A gradient as a plain tensor: zeros for an unused parameter, spread out when it came sparse."""
    if gradient is None:
        return torch.zeros_like(leaf)
    return gradient.to_dense() if gradient.is_sparse else gradient


def pull(subject: Subject, values: Tensor, weights: Tensor, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """`∂ Σ weights·values / ∂ leaf` for every leaf; the graph stays, since parts of it may be the caller's."""
    if not leaves:
        return []
    try:
        return list(torch.autograd.grad(values, leaves, weights, retain_graph=True, allow_unused=True))
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
    return _by_backward(subject, values, weights, leaves)


def _by_backward(subject: Subject, values: Tensor, weights: Tensor, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """The same by `backward`, for re-entrant checkpoints, which know no other way; `.grad` is put back."""
    everything = list(subject.model.parameters())
    hooked = [p for p in everything if getattr(p, "_post_accumulate_grad_hooks", None)]
    if hooked:
        raise UsageError(
            "the model uses re-entrant checkpoints and hooks that run after a gradient is accumulated, so it cannot be"
            " differentiated without running them; use checkpoint(..., use_reentrant=False) or remove the hooks"
        )
    before = [p.grad for p in everything]
    try:
        for p in everything:
            p.grad = None
        torch.autograd.backward(values, weights, retain_graph=True)
        return [leaf.grad for leaf in leaves]
    finally:
        for p, grad in zip(everything, before):
            p.grad = grad


def pulled(subject: Subject, batch: Batch, heads: Heads, weights: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """The outputs (n, heads) of a batch and `Σ_ic w_ic ∂f_c(x_i)/∂θ` for every leaf: one forward, one backward pass."""
    values = heads(subject(batch))
    if not values.requires_grad:
        return values.detach(), [None] * len(subject.leaves)
    return values.detach(), pull(subject, values, weights.to(values), list(subject.leaves.values()))

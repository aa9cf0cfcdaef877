"""The reference: plain autograd on the caller's own model, with nothing of the engine between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ntkscope.core import NtkscopeError, Params, UsageError, generator
from ntkscope.core.model.calling import logits
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import NOT_THE_MODEL, Subject

LOG = logging.getLogger(__name__)
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
        found: list[Tensor | None] = list(
            torch.autograd.grad(values, leaves, weights, retain_graph=True, allow_unused=True)
        )
        if all(gradient is not None for gradient in found) or not _recomputes(values):
            return found
    except RuntimeError as error:
        if "has changed the type" in str(error) or "on the same device" in str(error):  # a hook that holds a tensor
            raise UsageError(
                f"a gradient hook of the model fails in this dtype or on this device ({error}): leave dtype= and device= out"
            ) from error
        if "use_reentrant" not in str(error):
            raise
    return _by_backward(subject, values, weights, leaves)


def _recomputes(values: Tensor) -> bool:
    """Whether a function of the model's own may run a backward pass inside this one, as re-entrant checkpoints do: parameters
    that are used there alone have no gradient for `autograd.grad`, which then does not complain."""
    seen, ahead = set(), [values.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(node, "_forward_cls", None)
        if function is not None and not function.__module__.startswith("ntkscope."):
            return True
        ahead += [other for other, _ in node.next_functions]
    return False


def _by_backward(subject: Subject, values: Tensor, weights: Tensor, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """The same by `backward`, for re-entrant checkpoints, which know no other way; `.grad` is put back."""
    everything = list({id(t): t for t in (*subject.model.parameters(), *leaves)}.values())
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


def pulled(
    subject: Subject, batch: Batch, heads: Heads, weights: Tensor, leaves: Params | None = None
) -> tuple[Tensor, list[Tensor | None]]:
    """The outputs (n, heads) of a batch and `Σ_ic w_ic ∂f_c(x_i)/∂θ` for every leaf, or some: one pass forward, one back."""
    leaves = subject.leaves if leaves is None else leaves
    values = heads(subject(batch))
    if not values.requires_grad:
        return values.detach(), [None] * len(leaves)
    return values.detach(), pull(subject, values, weights.to(values), list(leaves.values()))


def answer(subject: Subject, batch: Batch, *, plainly: bool = False) -> dict[str, Tensor | None]:
    """The outputs of a batch, under no name, and the gradients of a random sum of them; `plainly`: nothing is put back."""
    fresh = batch.map(torch.clone)
    outputs = logits(subject.model(*fresh.args, **fresh.kwargs)) if plainly else subject(batch)
    for leaf in subject.leaves.values() if plainly else ():
        leaf.requires_grad_()  # where the pass has frozen it
    weights = torch.randn(outputs.shape, generator=generator(0, "twins"), dtype=torch.float64).to(outputs)
    grads = pull(subject, outputs, weights, list(subject.leaves.values())) if outputs.requires_grad else []
    return {"": outputs.detach(), **dict(zip(subject.leaves, grads))}


def differing(ours: dict[str, Tensor | None], theirs: dict[str, Tensor | None]) -> list[str]:
    """The names whose values differ by more than the order of sums makes of them."""
    return [name for name in {**ours, **theirs} if not _alike(ours.get(name), theirs.get(name))]


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    one, other = dense(one, one), dense(other, other)
    if torch.equal(one, other):
        return True
    finite = one[one.isfinite()].abs()
    if one.shape != other.shape or not finite.numel():
        return one.shape == other.shape
    rounding = torch.finfo(one.dtype).eps * (8 if one.device.type == "cpu" else 512)
    return torch.allclose(one, other, rtol=0, atol=float(finite.max()) * rounding, equal_nan=True)


def compare(subject: Subject, batch: Batch) -> None:
    """Hold a copy to the original: with the original's numbers in both, outputs and gradients must be the same.

    An original that cannot be run (half precision that its device does not compute) is not compared with.
    """
    own = subject.own
    if own is None:
        return
    batch = batch.to(own.device, own.dtype if subject.cast else None)
    with subject.one_thread:
        try:
            theirs = answer(own, batch)
        except (NtkscopeError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            LOG.info("the model cannot be run in its own dtype, so its copy is not compared with it (%r)", error)
            subject.own = None
            return
        with subject.in_original_numbers():
            ours = answer(subject, batch, plainly=True)
    names = differing(ours, theirs)
    if names:
        said = ", ".join(name for name in names if name) or "what its outputs depend on"
        raise UsageError(NOT_THE_MODEL.format(model=type(subject.original).__name__, names=said))
    subject.compared += len(batch)

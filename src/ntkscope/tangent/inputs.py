"""Gradients of the outputs by the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.tangent import guards
from ntkscope.tangent.batches import Batch, as_batch
from ntkscope.tangent.feature_audit import AuditedFeatures
from ntkscope.tangent.heads import Heads, as_heads
from ntkscope.tangent.subject import Subject, quiet


def input_gradients(
    model: nn.Module,
    x: Any,
    *,
    outputs: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    block: int = 256,
) -> Tensor:
    """`∂f_c(x_i)/∂x_i` for every sample and chosen output: (n, c, *shape of one input).

    One forward pass and one backward pass per output. The input must be one floating-point tensor.

    >>> input_gradients(nn.Sequential(nn.Linear(2, 1, bias=False)).requires_grad_(True), torch.ones(3, 2)).shape
    torch.Size([3, 1, 2])
    """
    guards.check_mode(model)
    subject = Subject(model, dtype=dtype, still=True)
    batch = as_batch(x, model)
    guards.check_placement(subject.device, False, batch)
    if len(batch.tensors()) != 1 or not batch.tensors()[0].is_floating_point():
        raise UsageError(
            "got inputs that are not one floating-point tensor; token ids have no gradient: use embeddings"
        )
    heads = as_heads(outputs)
    audited = AuditedFeatures(subject, partial(_gradients, heads=heads), kinked=True)
    with quiet(subject.device):
        few = subject.placed(batch[: min(3, len(batch))])
        values = guards.first_outputs(subject, few)
        heads.count(values.shape[1])
        guards.check_chance(subject, few, values)
        return torch.cat([audited(batch[at : at + block])[0] for at in range(0, len(batch), block)])


def _gradients(subject: Subject, batch: Batch, heads: Heads) -> list[Tensor]:
    leaf = batch.tensors()[0].detach().requires_grad_()
    values = heads(subject(Batch((leaf,), {}) if batch.args else Batch((), dict.fromkeys(batch.kwargs, leaf))))
    grads = [
        torch.autograd.grad(values[:, c].sum(), leaf, retain_graph=True, allow_unused=True)[0]
        for c in range(values.shape[1] if values.requires_grad else 0)
    ]
    if not grads:
        raise UsageError(
            "the outputs do not depend on the input as far as autograd can see: look for .detach() in forward"
        )
    return [torch.stack([torch.zeros_like(leaf) if g is None else g for g in grads], dim=1)]

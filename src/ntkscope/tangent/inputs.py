"""Gradients of the outputs by the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.tangent import guards
from ntkscope.tangent.batches import Batch, as_batch
from ntkscope.tangent.engine import Heads
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

    One forward pass and one backward pass an output. The input must be one floating-point tensor.

    >>> input_gradients(nn.Sequential(nn.Linear(2, 1, bias=False)).requires_grad_(True), torch.ones(3, 2)).shape
    torch.Size([3, 1, 2])
    """
    guards.check_mode(model)
    subject = Subject(model, dtype=dtype)
    batch = as_batch(x, model)
    guards.check_placement(subject, batch)
    if len(batch.tensors()) != 1 or not batch.tensors()[0].is_floating_point():
        raise UsageError(
            "inputs that are not one floating-point tensor came; token ids have no gradient: use embeddings"
        )
    heads = Heads(outputs)
    rows = []
    with quiet(subject.device):
        heads.count(guards.first_outputs(subject, batch[:1]).shape[1])
        for start in range(0, len(batch), block):
            part = batch[start : start + block].to(subject.device, subject.dtype)
            leaf = part.tensors()[0].detach().requires_grad_()
            values = heads(subject(Batch((leaf,), {}) if part.args else Batch((), dict.fromkeys(part.kwargs, leaf))))
            grads = [
                torch.autograd.grad(values[:, c].sum(), leaf, retain_graph=True, allow_unused=True)[0]
                for c in range(values.shape[1])
            ]
            rows.append(torch.stack([torch.zeros_like(leaf) if g is None else g for g in grads], dim=1))
    return torch.cat(rows)

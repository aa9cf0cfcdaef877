"""The method for parameters no rule knows: `torch.func` on those parameters alone, exact, sample by sample."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from ntkscope.core import Params
from ntkscope.core.machine.tensor_cores import tensor_cores
from ntkscope.tangent.model.autograd import dense, pull
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject

LOG = logging.getLogger(__name__)
Heads = Callable[[Tensor], Tensor]
# of models `vmap` cannot follow
REFUSALS = (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError, LookupError, AssertionError)


def vectorised(subject: Subject, batch: Batch, names: Sequence[str], heads: Heads) -> Params:
    """Gradients (n, heads, numbers) of each named parameter by `vmap(jacrev)` over the samples."""
    chosen = {name: subject.leaves[name].detach() for name in names}
    subject.spare()  # made here: inside vmap a copy cannot be

    def outputs(leaves: Params, sample: list[Tensor]) -> Tensor:
        members = iter(sample)
        return heads(subject(batch.map(lambda _: next(members).unsqueeze(0)), leaves))[0]

    jacobian = vmap(jacrev(outputs), in_dims=(None, 0))(chosen, batch.tensors())
    flat = {name: value.flatten(2) if value.dim() > 2 else value.unsqueeze(2) for name, value in jacobian.items()}
    # a trainable tensor beside the parameters leaves a graph
    return {name: value.detach() for name, value in flat.items()}


def one_by_one(subject: Subject, batch: Batch, names: Sequence[str], heads: Heads) -> Params:
    """The same by plain autograd, one sample and one head after another: for models `vmap` cannot follow."""
    leaves = [subject.leaves[name] for name in names]
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    for i in range(len(batch)):
        outputs = heads(subject(batch[i : i + 1]))
        one = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        grads = [pull(subject, outputs, one[k : k + 1], leaves) for k in range(outputs.shape[1])]
        for position, (name, leaf) in enumerate(zip(names, leaves)):
            rows[name].append(torch.stack([dense(g[position], leaf).reshape(-1) for g in grads]))
    return {name: torch.stack(value) for name, value in rows.items()}


def choose(subject: Subject, batch: Batch, names: Sequence[str], heads: Heads) -> tuple[str, Params]:
    """Which of the two works on this model, tried on the probe: the quick one, if it gives what autograd gives.

    It is tried on all samples and on one less: some batching rules of PyTorch only work with as many samples as heads. In full
    float32, whatever the precision: rounded to TF32, products of one sample and of several differ by more than methods may.
    """
    with tensor_cores(False):
        exact = one_by_one(subject, batch, names, heads)
        works = not subject.casts and _follows(subject, batch, exact, heads)  # replaced parameters cannot be cast
    return "vmap" if works else "loop", exact


def _follows(subject: Subject, batch: Batch, exact: Params, heads: Heads) -> bool:
    tolerance = 1e-8 if subject.dtype == torch.float64 else 1e-3
    for n in {len(batch), max(1, len(batch) - 1)}:
        try:
            quick = vectorised(subject, batch[:n], list(exact), heads)
        except REFUSALS as error:
            LOG.info("vmap cannot follow this model, so samples one by one (%r)", error)
            return False
        for name, true in exact.items():
            made, true = quick[name], true[:n]
            if made.shape != true.shape:
                return False
            if not bool((made - true).abs().max() <= tolerance * true.abs().max().clamp_min(1e-30)):
                return False
    return True


def gradients(method: str, subject: Subject, batch: Batch, names: Sequence[str], heads: Heads) -> Params:
    """Gradients (n, heads, numbers) by the chosen method; if the fast one fails after all, by the other."""
    if method == "vmap":
        try:
            return vectorised(subject, batch, names, heads)
        except torch.OutOfMemoryError:
            raise
        except REFUSALS as error:
            LOG.info("vmap could not follow the model on this block, so its samples one by one (%r)", error)
    return one_by_one(subject, batch, names, heads)

"""A probed model: a few of its samples, what the guards and the probe found with them, and what a sample's graph takes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ntkscope.core import generator
from ntkscope.core.machine.tensor_cores import tensor_cores
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probe import SAMPLES, Findings, probe
from ntkscope.tangent.trace.tape import Call, watch

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Probed:
    """What a probe of a subject found, whatever the heads: kept from call to call."""

    few: Batch
    findings: Findings
    graph_bytes: int
    calls: list[Call]
    size: float  # of the largest gradient

    @classmethod
    def of(cls, subject: Subject, sample: Batch) -> Probed:
        few = subject.placed(_few(sample))
        with tensor_cores(False):
            outputs = guards.first_outputs(subject, few)
            guards.check_differentiable(subject, outputs)
            guards.check_randomness(subject, few, outputs)
            guards.check_independence(subject, few, outputs)
            size = guards.check_used(subject, few)
            findings = probe(subject, few, outputs.shape[1])
            graph_bytes, calls = _graph_bytes(subject, few, findings)
        return cls(few, findings, graph_bytes, calls, size)


def probed(x1: Batch, x2: Batch | None) -> Batch:
    """Samples to probe from: of the first side, and of the second when the first is short and alike."""
    if x2 is None or len(x1) >= SAMPLES:
        return x1
    return x2 if len(x2) >= SAMPLES else x1


def _few(sample: Batch) -> Batch:
    """The probed samples: the first and two others drawn at random, repeated if there are fewer."""
    n = len(sample)
    drawn = torch.randperm(n - 1, generator=generator(0, "probed samples", n))[: SAMPLES - 1] + 1
    index = torch.cat([torch.zeros(1, dtype=torch.long), drawn]).repeat(SAMPLES)[:SAMPLES]
    return sample.map(lambda t: t[index.to(t.device)])


def _graph_bytes(subject: Subject, batch: Batch, findings: Findings) -> tuple[int, list[Call]]:
    """What autograd keeps for a sample between the forward and the backward pass, and the probed calls."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a node that kept its own output with its graph would never be freed

    state = (*subject.model.parameters(), *subject.model.buffers())
    own = {tensor.untyped_storage().data_ptr() for tensor in state if not tensor.is_sparse}
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            outputs, tape = watch(subject, batch, findings.layouts)
        size = sum(nbytes for pointer, nbytes in kept.items() if pointer not in own)
    except RuntimeError as error:  # a model that differentiates inside, where such hooks are not allowed
        LOG.info("the bytes of the graph are estimated from the calls (%r)", error)
        outputs, tape = watch(subject, batch, findings.layouts)
        size = 8 * sum(call.shape.numel() * outputs.element_size() for call in tape.calls)
        size += 16 * sum(t.numel() * t.element_size() for t in batch.tensors())
    del outputs
    return 2 * size // len(batch), [replace(call, edge=None) for call in tape.calls]

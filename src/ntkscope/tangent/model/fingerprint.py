"""Fingerprints of what a kernel's numbers depend on: the network, its inputs, the names of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ntkscope.core.identity import DIGITS, Answers, code_identity, network_identity
from ntkscope.core.types import fingerprint
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject, place, quiet

__all__ = ["DIGITS", "code_identity", "inputs_fingerprint", "names_fingerprint", "network_answers", "network_identity"]
SHOWN = 6  # names a list shows before its fingerprint speaks for the rest


def network_answers(
    model: nn.Module,
    x: Batch,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    numbers: Sequence[int] | None = None,
) -> Answers:
    """The network's outputs for a few of its inputs, to tell later whether it still answers so; `numbers`: `x` is those
    few alone, of these numbers."""
    with quiet(place(model, device), model), torch.no_grad():
        subject = Subject(model, dtype=dtype, device=device, still=True)

        def ask(items: list[int]) -> Tensor:
            return subject(subject.placed(x if numbers is not None else x[torch.tensor(items)]))

        found = Answers.of(ask, len(x), subject.device)
    return found if numbers is None else replace(found, items=tuple(numbers))


def inputs_fingerprint(batch: Batch | None) -> str:
    """Of every tensor's bytes; of a side that is left out, the words for it."""
    return "the same inputs" if batch is None else fingerprint(batch.args, batch.kwargs)[:DIGITS]


def names_fingerprint(names: Sequence[str]) -> str:
    """A list of names, the first few of them to be read.

    >>> names_fingerprint(["a", "b"])
    'a, b'
    """
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN])} … ({len(names)} in all, {fingerprint(list(names))[:8]})"

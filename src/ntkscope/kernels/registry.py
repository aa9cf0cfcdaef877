"""The registry of kernels and what every one of them is asked with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ntkscope.core import MemoryBudgetError, Registry, UsageError
from ntkscope.linalg import Gram
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.plan import show_bytes
from ntkscope.tangent.subject import Selection, Subject

KERNELS: Registry[Callable[..., Gram]] = Registry("kernel")


@dataclass(frozen=True)
class Request:
    """What the caller of `ns.kernel` asked for, inputs made into batches and checked."""

    name: str
    model: nn.Module
    x1: Batch
    x2: Batch | None
    outputs: Sequence[int] | None
    params: Selection
    dtype: torch.dtype | None
    device: torch.device | str | None
    memory: int
    progress: bool
    seed: int
    store: str | None = None  # where tiles are kept; None: the kernel stays in memory
    executor: Any = None  # who computes them; None: this process

    def subject(self, params: Selection = None, last: Sequence[str] = (), *, still: bool = False) -> Subject:
        return Subject(self.model, params=params, last=last, dtype=self.dtype, device=self.device, still=still)

    def check_memory(self, features: int, itemsize: int) -> None:
        """Refuse a budget into which the features of all inputs do not fit; `features` numbers a sample."""
        samples = len(self.x1) + (0 if self.x2 is None else len(self.x2))
        needed = samples * features * itemsize * 2  # the blocks and the whole they are joined into
        if needed > self.memory:
            raise MemoryBudgetError(
                f"memory={show_bytes(self.memory)} came for {samples} samples of {features} features; the smallest budget that"
                f" works is {show_bytes(needed)} ({needed} bytes): raise memory="
            )

    def placed(self, subject: Subject, batch: Batch) -> Batch:
        """A batch where the subject is, in its dtype, as far as the caller asked for that."""
        return subject.placed(batch)

    def unrestricted(self) -> None:
        """Refuse `params=` and `outputs=` where they mean nothing."""
        if self.params is not None:
            raise UsageError(f"params={self.params!r} came for {self.name!r}, which uses no gradients; leave it out")
        if self.outputs is not None:
            raise UsageError(f"outputs={self.outputs!r} came for {self.name!r}, which uses no outputs; leave it out")


def describe(subject: Subject, **more: Any) -> dict[str, Any]:
    """What a tangent kernel says about itself."""
    return {"parameters": subject.parameters, "dtype": str(subject.dtype).replace("torch.", ""), **more}

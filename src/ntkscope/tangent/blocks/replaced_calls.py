"""Calls that are made in another, equal way: when they may be, and what their passes back need not give.

Most passes back of ours want cotangents alone, and gradients of weights cost as much again. Those of anyone else (a model that
differentiates inside its forward pass, the pass that checks) get what PyTorch would give.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class ReplacedCalls:
    """Whether a pass back through the calls of one watched forward pass wants cotangents alone.

    Each forward pass has its own, so that threads, and those of PyTorch's own that passes back are made in, do not meet.
    """

    def __init__(self) -> None:
        self.alone = False

    @contextmanager
    def of_cotangents(self) -> Iterator[None]:
        before, self.alone = self.alone, True
        try:
            yield
        finally:
            self.alone = before


def recomputed() -> bool:
    """Whether what calls keep for their passes back is kept by someone else, who may compute it again with PyTorch's own calls
    (activation checkpoints)."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None

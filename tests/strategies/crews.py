"""Several threads at blocks of their own, on however few samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ntkscope.tangent.kernel import plan
from ntkscope.tangent.kernel.plan import planned


@contextmanager
def crew_of(threads: int) -> Iterator[None]:
    """So many threads inside, each worth a block of one sample where there are several."""
    before, worth = torch.get_num_threads(), plan.CREW_BLOCK
    torch.set_num_threads(threads)
    plan.CREW_BLOCK = 1 if threads > 1 else worth
    planned.cache_clear()  # plans that were made for longer blocks
    try:
        yield
    finally:
        torch.set_num_threads(before)
        plan.CREW_BLOCK = worth
        planned.cache_clear()

"""The error raised when a memory budget is too small."""

from __future__ import annotations

import math

from ntkscope.core.errors import MemoryBudgetError
from ntkscope.core.sizes import show_bytes


def over_budget(memory: int, least: int | float, what: str, remedy: str = "raise memory=") -> MemoryBudgetError:
    """The error for a budget into which `what` does not fit: it states the smallest budget that works.

    >>> str(over_budget(2**20, 2**21, "for one sample"))
    'memory=1.0MiB is too little for one sample; the smallest budget that works is 2.0MiB (2097152 bytes): raise memory='
    """
    return MemoryBudgetError(
        f"memory={show_bytes(memory)} is too little {what}; the smallest budget that works is {show_bytes(least)}"
        f" ({math.ceil(least)} bytes): {remedy}"
    )

"""Byte counts: parsed from strings, formatted for people, and the error for a budget that is too small."""

from __future__ import annotations

import math
import re

import numpy as np

from ntkscope.core.errors import MemoryBudgetError, UsageError

UNITS = {"": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "t": 1e12, "tb": 1e12, "tib": 2**40}


def parse_bytes(memory: str | int | float) -> int:
    """A number of bytes from "2GiB", "500 MB" or a plain number.

    >>> parse_bytes("2GiB"), parse_bytes("1.5 kB"), parse_bytes(100)
    (2147483648, 1500, 100)
    """
    size = float("nan")
    if isinstance(memory, int | float | np.integer | np.floating) and not isinstance(memory, bool):
        size = float(memory)
    elif isinstance(memory, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([a-zA-Z]*)\s*", memory)
        if match and match[2].lower() in UNITS:
            size = float(match[1]) * UNITS[match[2].lower()]
    if not (math.isfinite(size) and size >= 1):
        raise UsageError(f"got memory={memory!r}; expected a size such as '2GiB' or '500MB', or a number of bytes")
    return int(size)


def show_bytes(count: int | float) -> str:
    """
    >>> show_bytes(3 * 2**20)
    '3.0MiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f}{unit}" if unit == "B" else f"{count:.1f}{unit}"
        count /= 1024
    return f"{count:.1f}TiB"


def over_budget(memory: int, least: int | float, what: str, remedy: str = "raise memory=") -> MemoryBudgetError:
    """The error for a budget into which `what` does not fit: it states the smallest budget that works.

    >>> str(over_budget(2**20, 2**21, "for one sample"))
    'memory=1.0MiB is too little for one sample; the smallest budget that works is 2.0MiB (2097152 bytes): raise memory='
    """
    return MemoryBudgetError(
        f"memory={show_bytes(memory)} is too little {what}; the smallest budget that works is {show_bytes(least)}"
        f" ({math.ceil(least)} bytes): {remedy}"
    )

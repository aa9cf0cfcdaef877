"""The schedule that forms gradients layer by layer, on networks too small for it to be worth it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ntkscope.tangent.blocks import deferred
from ntkscope.tangent.kernel import in_memory as products
from ntkscope.tangent.kernel.plan import Plan
from ntkscope.tangent.trace import parameter_blocks as pieces


@contextmanager
def everything_deferred() -> Iterator[None]:
    """Every layer's gradient that can be formed is formed, and formed late, whatever takes fewer bytes or sums, in parts of as
    few rows as need be."""
    before = deferred.WORTH, deferred.LEAST, pieces.ELEMENTWISE
    deferred.WORTH, deferred.LEAST, pieces.ELEMENTWISE = float("inf"), 1, 10**9
    try:
        yield
    finally:
        deferred.WORTH, deferred.LEAST, pieces.ELEMENTWISE = before


@contextmanager
def planned_as(rows: int, columns: int, block: int, forming: int, passes: int = 1) -> Iterator[None]:
    """Kernels in memory are made in tiles of `rows` by `columns` samples, however few; of one set of inputs in squares."""

    def planned(n: int, m: int | None, *rest: Any) -> Plan:
        side, most = min(n, m or n), max(n, m or n)
        across = min(columns, most) if m is not None else min(rows, side)
        return Plan(min(rows, side), block, 2**21, 1, across, forming, passes=passes)

    def in_passes(maker: Any, each: Any, plan: Plan, *rest: Any) -> Any:
        return (maker.layers(passes) if passes > 1 else [maker]), each, plan

    with patch.multiple(products, roomy=planned, _in_passes=in_passes):
        yield

"""A forest mark: an estimate and its interval on a small axis, for a cell of a table."""

from __future__ import annotations

import math
from typing import Any

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import as_float


def forest(value: Any, low: Any, high: Any, *, smallest: float | int, largest: float | int, kind: str = "") -> Markup:
    """A dot at `value` and a line from `low` to `high`, on an axis from `smallest` to `largest`; empty without a value."""
    middle, left, right = (_place(as_float(v), float(smallest), float(largest)) for v in (value, low, high))
    if math.isnan(middle):
        return Markup("")
    zero = _place(0.0, float(smallest), float(largest))
    parts = [tag("i", class_="zero", style=f"left:{zero:.1f}%")] if smallest < 0 < largest else []
    if left == left and right == right:
        parts.append(tag("i", class_="whisker", style=f"left:{left:.1f}%;width:{max(right - left, 0.0):.1f}%"))
    parts.append(tag("i", class_="dot", style=f"left:{middle:.1f}%"))
    return tag("span", *parts, class_=f"forest {kind}".strip(), aria_hidden="true")


def _place(value: float, smallest: float, largest: float) -> float:
    if math.isnan(value) or largest <= smallest:
        return math.nan
    return 100 * min(max((value - smallest) / (largest - smallest), 0.0), 1.0)

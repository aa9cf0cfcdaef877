"""Marks in HTML, so that text stays legible at every width: bars, an estimate with its interval, a position on a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import as_float, number


@dataclass(frozen=True)
class Bar:
    """A row: its name, its value, how the value is written, a class for its colour, and its tooltip."""

    name: Any
    value: Any
    shown: str
    kind: str = ""
    tip: str = ""


def bars(rows: Sequence[Bar], *, label: str, largest: float | int | None = None) -> Markup:
    """Bars from zero to the largest value, as a list; values that are not numbers have no bar."""
    values = [as_float(row.value) for row in rows]
    top = float(largest) if largest is not None else max((v for v in values if v == v), default=1.0)
    out = []
    for row, value in zip(rows, values, strict=True):
        width = 0.0 if value != value or top <= 0 else 100 * min(max(value / top, 0.0), 1.0)
        filled = tag("span", class_=f"fill {row.kind}".strip(), style=f"width:{width:.2f}%")
        out.append(
            tag(
                "li",
                tag("span", row.name, class_="bar-name"),
                tag("span", filled, class_="track", aria_hidden="true"),
                tag("span", row.shown, class_="bar-value"),
                data_tip=row.tip or None,
            )
        )
    return tag("ul", *out, class_="bars", aria_label=label)


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


def gauge(score: Any, *, low: str, high: str) -> Markup:
    """A track from `low` (0) to `high` (1) with a pointer at `score`; without a score the track stays empty."""
    place = as_float(score)
    known = math.isfinite(place)
    said = f"{number(place, 2)} on a scale from 0, {low}, to 1, {high}" if known else "no score"
    at = f"left:{100 * min(max(place, 0.0), 1.0):.1f}%" if known else ""
    pointer = tag("span", tag("b", number(place, 2)), class_="pointer", style=at) if known else None
    return tag(
        "div",
        tag("div", pointer, class_="gauge-track" if known else "gauge-track unknown"),
        tag("div", tag("span", low), tag("span", high), class_="gauge-ends", aria_hidden="true"),
        class_="gauge",
        role="img",
        aria_label=said,
    )

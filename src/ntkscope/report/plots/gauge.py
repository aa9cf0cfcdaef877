"""The gauge: a position between lazy and rich."""

from __future__ import annotations

import math
from typing import Any

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import as_float, number


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

"""Bars: rows of a name, a bar and its value; HTML, so that text stays legible at every width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ntkscope.report.markup import Markup, tag
from ntkscope.report.numbers import as_float


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

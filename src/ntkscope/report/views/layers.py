"""Where the kernel lives: the share of each layer in the trace, and the method by which it was computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report import certificates
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, percent
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views.registry import VIEWS


@VIEWS.register("layers")
def layers(section: Section, source: Source) -> Drawing:
    """A table with a bar per layer, the coverage of the rules, and how the kernels were checked."""
    found = section.data.get("layers") or []
    largest = max((as_float(row.get("share")) for row in found), default=1.0)
    rows = [_row(n, row, largest) for n, row in enumerate(found, 1)]
    heads = ["Order", "Layer", "Share", "", "Parameters", "Alignment", "Method", "Seconds"]
    shown = table(heads, rows, name="Layers", export=f"{source.record.name}-layers.csv", kind="layers")
    return Drawing(join([shown, _coverage(section.data.get("coverage") or {}), certificates.section(source)]))


def _row(n: int, row: Mapping[str, Any], largest: float) -> list[Cell]:
    share = as_float(row.get("share"))
    width = 100 * share / largest if largest > 0 and share == share else 0.0
    bar = tag(
        "span", tag("span", class_="fill", style=f"width:{max(width, 0.0):.1f}%"), class_="track", aria_hidden="true"
    )
    return [
        Cell(str(n), n, True, "soft"),
        Cell(tag("code", row.get("name", "")), row.get("name", "")),
        *figures(share, shown=percent),
        Cell(bar, kind="bar-cell"),
        *figures(row.get("parameters"), row.get("centred_alignment")),
        Cell(row.get("road", ""), row.get("road", "")),
        *figures(row.get("seconds"), digits=2),
    ]


def _coverage(coverage: Mapping[str, Any]) -> Markup | None:
    """One bar divided by method, with a key below."""
    roads = {str(road): as_float(share) for road, share in (coverage.get("roads") or {}).items()}
    if not roads:
        return None
    parts = []
    for n, (road, share) in enumerate(roads.items()):
        width, tip = f"width:{100 * max(share, 0.0):.2f}%", f"{road}: {percent(share)}"
        parts.append(tag("span", style=width, class_=f"part part-{n % 6}", data_tip=tip) if share == share else None)
    key = [
        tag("li", tag("i", class_=f"part-{n % 6}", aria_hidden="true"), f"{road} {percent(share)}")
        for n, (road, share) in enumerate(roads.items())
    ]
    described = ", ".join(f"{road} {percent(share)}" for road, share in roads.items())
    return join(
        [
            tag("h3", "How the layers were computed, by share of the parameters"),
            tag("div", *parts, class_="stack", role="img", aria_label=described),
            tag("ul", *key, class_="key"),
        ]
    )

"""Last layer and tangent: held-out loss of the network, of its readout solved anew, and of its tangent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import number, percent
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views.registry import VIEWS

NAMES = {"network": "The network", "readout": "Readout solved anew", "tangent": "Tangent solved"}
POINT = 0.01  # of accuracy: closer than that counts as the same


@VIEWS.register("tangent")
def tangent(section: Section, source: Source) -> Drawing:
    """A sentence, the three readings, and why one is missing."""
    readings = section.data["readings"]
    parts = [_sentence(readings), tag("h3", "Three readings"), _table(readings, source)]
    for name, why in section.data["refused"].items():
        parts.append(tag("p", NAMES.get(name, name), " is missing: ", why, class_="soft"))
    said = (
        f"Solved on {number(section.data['items'])} training items, with {number(section.data['parameters'])} parameters and"
        f" ridge {number(section.data['ridge'])}."
    )
    return Drawing(join([*parts, tag("p", said, class_="soft small")]))


def _sentence(readings: list[Mapping[str, Any]]) -> Markup:
    found = {row["name"]: row for row in readings}
    own = found.get("network")
    said = []
    for name in ("readout", "tangent"):
        if own is None or name not in found:
            continue
        gap = own["accuracy"] - found[name]["accuracy"]
        what = "The last layer alone" if name == "readout" else "The tangent"
        if abs(gap) <= POINT:
            said.append(f"{what}, solved outright, is as accurate as the network (within one point).")
        else:
            said.append(
                f"{what}, solved outright, is {number(100 * abs(gap))} points {'less' if gap > 0 else 'more'} accurate than the"
                " network."
            )
    return tag("p", " ".join(said))


def _table(readings: list[Mapping[str, Any]], source: Source) -> Markup:
    rows = [
        [
            Cell(NAMES.get(row["name"], row["name"]), row["name"], kind="strong"),
            *figures(row["loss"]),
            Cell(f"{number(row['loss_low'])} – {number(row['loss_high'])}", row["loss_low"]),
            *figures(row["accuracy"], row["agreement"], shown=percent),
        ]
        for row in readings
    ]
    heads = ["Reading", "Held-out loss", "95 % interval", "Accuracy", "Same class as the network"]
    return table(heads, rows, name="Last layer and tangent", export=f"{source.record.name}-tangent.csv")

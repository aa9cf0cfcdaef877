"""The verdict between lazy and rich, and the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import number
from ntkscope.report.plots import gauge
from ntkscope.report.tables import Cell, table

_READS = {
    "lazy": "It behaves like a kernel machine with a fixed kernel.",
    "rich": "It learned features: its kernel changed during training.",
    "in between": "It behaves partly like a fixed kernel and partly has learned features.",
    "not enough evidence": "The measurements do not settle the question.",
}


def hero(data: Mapping[str, Any]) -> Markup:
    """The verdict in a word, why, and where it lies between lazy and rich."""
    verdict = str(data["verdict"])
    return tag(
        "div",
        tag("p", "This network looks", class_="eyebrow"),
        tag("p", verdict if verdict != "not enough evidence" else "undecided", class_="verdict"),
        tag("p", data.get("why") or _READS.get(verdict, ""), class_="soft"),
        gauge(data.get("score"), low="lazy: a fixed kernel", high="rich: learned features"),
        class_="card hero",
    )


def evidence(data: Mapping[str, Any]) -> Markup | None:
    """The measured values behind the verdict; None without any."""
    found = data.get("evidence") or []
    if not found:
        return None
    shown = table(
        ["Evidence", "Value", "Indicates", "Why"],
        [_row(each) for each in found],
        name="Evidence",
        sortable=False,
        kind="stacking",
    )
    return join([tag("h3", "Evidence for the verdict"), shown])


def _row(evidence: Mapping[str, Any]) -> list[Cell]:
    says = str(evidence.get("says", ""))
    return [
        Cell(evidence.get("what", ""), kind="strong"),
        Cell(number(evidence.get("value")), numeric=True),
        Cell(tag("span", says, class_=f"pill {says if says in ('lazy', 'rich') else 'neither'}")),
        Cell(evidence.get("note", ""), kind="wide soft"),
    ]

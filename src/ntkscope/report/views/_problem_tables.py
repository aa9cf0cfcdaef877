"""Tables of training items to check by hand: what the lists of data problems have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import number
from ntkscope.report.source import Source
from ntkscope.report.tables import Cell, table


def part(
    title: str,
    words: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    source: Source,
    panel: Markup | None = None,
) -> Markup:
    head = tag("h3", title, tag("span", f"{len(rows):,}", class_="count"))
    if not rows:
        return join([head, tag("p", "None were found.", class_="soft")])
    file = f"{source.record.name}-{title}.csv".lower()
    shown = table(heads, rows, name=title, export=file, tall=True, kind="problems")
    if panel is not None:
        return join([head, tag("p", words, class_="soft"), panel, tag("div", shown, class_="problems-part")])
    return tag("div", head, tag("p", words, class_="soft"), shown, class_="problems-part")


def rank(n: int) -> Cell:
    return Cell(str(n), n, True, "soft")


def item(index: int, source: Source) -> Cell:
    return Cell(source.items.link("train", index), source.items.text("train", index, 10_000))


def number_of(row: Mapping[str, Any], key: str = "original", otherwise: str = "index") -> Cell:
    value = int(row.get(key, row[otherwise]))
    return Cell(f"#{value}", value, True)


def pair(n: int, row: Mapping[str, Any], source: Source) -> list[Cell]:
    same, exact = bool(row["same_label"]), "exact" if row.get("exact") else "near"
    labels = "same" if same else "different"
    return [
        rank(n),
        item(int(row["a"]), source),
        number_of(row, "original_a", "a"),
        item(int(row["b"]), source),
        number_of(row, "original_b", "b"),
        Cell(number(row["similarity"], 5), row["similarity"], True),
        Cell(tag("span", labels, class_="pill quiet" if same else "pill bad"), labels),
        Cell(exact, exact),
    ]

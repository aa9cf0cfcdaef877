"""Any section by its numbers: mappings as lists of terms, lists of mappings as tables, arrays by their shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import plain
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, table

ROWS = 200  # rows per table; the rest are counted, not shown


def generic(section: Section, source: Source) -> Drawing:
    """The section's numbers and tables, and the names of its arrays."""
    arrays = [name for name in source.record.arrays if name.startswith(f"{section.name}.")]
    shapes = {name: "×".join(map(str, source.record.to_json()["arrays"][name]["shape"])) for name in arrays}
    return Drawing(join([values(section.data, section.title), values({"arrays": shapes}, "") if shapes else None]))


def values(data: Mapping[str, Any], title: str) -> Markup:
    """A mapping: its single values as terms, what is nested below them."""
    single = {key: value for key, value in data.items() if not isinstance(value, (Mapping, list, tuple))}
    nested = {key: value for key, value in data.items() if key not in single}
    return join([terms(single) if single else None, *(_nested(key, value, title) for key, value in nested.items())])


def terms(pairs: Mapping[str, Any]) -> Markup:
    """A list of names and values."""
    rows = ((tag("dt", key.replace("_", " ")), tag("dd", plain(value))) for key, value in pairs.items())
    return tag("dl", *(tag("div", *row) for row in rows), class_="terms")


def _nested(key: str, value: Any, title: str) -> Markup:
    head = tag("h3", key.replace("_", " ").capitalize())
    if isinstance(value, Mapping):
        return join([head, values(value, title)])
    if value and all(isinstance(row, Mapping) for row in value):
        columns = list(dict.fromkeys(name for row in value for name in row))
        rows = [[Cell.of(row.get(name)) for name in columns] for row in value[:ROWS]]
        more = f"The first {ROWS} of {len(value):,} rows." if len(value) > ROWS else None
        name = f"{title} {key}".strip()
        return join([head, table(columns, rows, name=name, kind="loose"), more and tag("p", more, class_="soft")])
    return join([head, tag("p", _some(value))])


def _some(value: Sequence[Any]) -> str:
    shown = plain(list(value[:50]), 2000)
    return shown + (f" … ({len(value):,} in all)" if len(value) > 50 else "")

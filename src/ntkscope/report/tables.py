"""Tables: sortable by a script, exportable as CSV, scrolling in their own box on a narrow page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ntkscope.report.help import tau
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import NONE, interval, number, plain


@dataclass(frozen=True)
class Cell:
    """A cell: what is shown, the value it is sorted and exported by, and whether it is right-aligned like a number.

    A cell without a value (a thumbnail) is left out of exports together with its column.
    """

    shown: Any
    value: Any = None
    numeric: bool = False
    kind: str = ""

    @classmethod
    def of(cls, value: Any) -> Cell:
        """A cell that shows a value of a record unchanged.

        >>> Cell.of(0.25)
        Cell(shown='0.25', value=0.25, numeric=True, kind='')
        """
        simple = value is None or isinstance(value, (bool, int, float, str))
        return cls(plain(value), value if simple else plain(value), isinstance(value, (int, float)))


def figures(*values: Any, shown: Callable[..., Any] = number, **options: Any) -> list[Cell]:
    """Cells of numbers, each shown in few digits and sorted by its value.

    >>> figures(0.71234, None)
    [Cell(shown='0.712', value=0.71234, numeric=True, kind=''), Cell(shown='–', value=None, numeric=True, kind='')]
    """
    return [Cell(shown(value, **options), value, True) for value in values]


def with_range(row: Mapping[str, Any], key: str, shown: Callable[[Any], Any] = number, element: str = "span") -> Cell:
    """The figure `key` of a row with its interval, `key_low` to `key_high`, where that is known."""
    span = interval(row.get(f"{key}_low"), row.get(f"{key}_high"), number if shown is tau else shown)
    return Cell(join([shown(row.get(key)), tag(element, span, class_="range") if span else None]), row.get(key), True)


def table(
    heads: Sequence[Any],
    rows: Sequence[Sequence[Cell]],
    *,
    name: str,
    sortable: bool = True,
    export: str | None = None,
    tall: bool = False,
    id_: str | None = None,
    kind: str = "",
) -> Markup:
    """A table in a box that scrolls; `export` is the file name for the export button, `tall` limits its height.

    Of the kind "carded" a row is a card on a phone: the first cell is its title, the others stand under the names of their
    columns, without cells of the kind "minor".
    """
    numeric = [_numbers([row[k] for row in rows]) for k in range(len(heads))]
    valued = [any(row[k].value is not None for row in rows) for k in range(len(heads))]
    head_cells = []
    for k, head in enumerate(heads):
        press = sortable and valued[k]
        inner = tag("button", head, type="button", class_="sort") if press else head
        side = "num" if numeric[k] else None
        # sorting is announced; an export includes the columns that have values
        head_cells.append(
            tag("th", inner, scope="col", class_=side, aria_sort="none" if press else None, data_column=press or None)
        )
    body = [tag("tr", *map(_cell, row, numeric, heads)) for row in rows]
    made = tag(
        "table",
        tag("caption", name, class_="hidden"),
        tag("thead", tag("tr", *head_cells)),
        tag("tbody", *body),
        class_=f"sortable {kind}".strip() if sortable else kind or None,
        id=id_,
    )
    box = tag(
        "div",
        made,
        class_="scroll tall" if tall else "scroll",
        tabindex="0",
        role="region",
        aria_label=f"Table: {name}",
    )
    if export is None:
        return box
    button = tag("button", "Save as CSV", type="button", class_="action", data_export=_file(export))
    return tag("div", tag("div", button, class_="table-tools"), box, class_="exportable")


def _numbers(column: Sequence[Cell]) -> bool:
    """Whether a column holds numbers, some of them perhaps missing."""
    return any(cell.numeric for cell in column) and all(cell.numeric or cell.shown == NONE for cell in column)


def _cell(cell: Cell, right: bool, head: Any) -> Markup:
    classes = " ".join(filter(None, ["num" if right or cell.numeric else "", cell.kind]))
    value = cell.value
    if isinstance(value, bool):
        value = str(value).lower()
    typed = "number" if cell.numeric and value is not None else None
    named = None if isinstance(head, Markup) else head
    return tag("td", cell.shown, class_=classes or None, data_value=value, data_type=typed, data_head=named)


def _file(name: str) -> str:
    """A file name that every system accepts.

    >>> _file("data problems: a/b.csv")
    'data-problems-a-b.csv'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "table.csv"

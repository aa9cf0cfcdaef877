"""Right and wrong by class: the confusion matrix, the pairs confused most often, and a table of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import number, percent
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views.registry import VIEWS

CLASSES = 24  # rows of the matrix; with more classes, those with the most mistakes are shown


@VIEWS.register("confusion")
def confusion(section: Section, source: Source) -> Drawing:
    """Matrix, pairs and classes; a count leads to its items in the explorer."""
    rows = section.data["classes"]
    matrix = source.array("confusion.matrix")
    parts = [_matrix(matrix, source) if matrix is not None else None, _pairs(section.data["confused"], source)]
    shown = tag("div", *(part for part in parts if part is not None), class_="confusion-pair")
    return Drawing(join([shown, tag("h3", "Class by class"), _classes(rows, source)]))


def _find(true: int, predicted: int, source: Source) -> dict[str, str]:
    """Attributes of a link to the test items of one class that were taken for another."""
    names = (source.class_name(k) if '"' not in source.class_name(k) else str(k) for k in (true, predicted))
    return {"href": "#s-explain", "data_find": 'true:"{}" predicted:"{}"'.format(*names)}


def _matrix(matrix: np.ndarray, source: Source) -> Markup | None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        return None
    off = matrix - np.diag(np.diagonal(matrix))
    chosen = np.arange(len(matrix))
    note = None
    if len(matrix) > CLASSES:
        chosen = np.sort(np.argsort(-(off.sum(0) + off.sum(1)), kind="stable")[:CLASSES])
        note = f"The {CLASSES} of {len(matrix):,} classes with the most mistakes."
    largest = max(1, int(off[np.ix_(chosen, chosen)].max()))
    names = [source.class_name(int(k)) for k in chosen]
    short = [name if len(name) <= 12 else name[:11] + "…" for name in names]
    head = tag("tr", tag("th", "true ↓", scope="col"), *(tag("th", name, scope="col", class_="num") for name in short))
    body = []
    for i, label in enumerate(chosen.tolist()):
        cells = [tag("th", short[i], scope="row")]
        for j, other in enumerate(chosen.tolist()):
            cells.append(_cell(int(matrix[label, other]), label, other, largest, (names[i], names[j]), source))
        body.append(tag("tr", *cells))
    caption = "Rows: true class. Columns: predicted. Darker: more mistakes; press a count to see its items."
    grid = tag(
        "table",
        tag("caption", "Confusion matrix", class_="hidden"),
        tag("thead", head),
        tag("tbody", *body),
        class_="confusion",
    )
    box = tag("div", grid, class_="scroll fit", tabindex="0", role="region", aria_label="Confusion matrix")
    return tag("figure", tag("figcaption", "Confusion matrix"), box, tag("p", caption, " ", note, class_="soft small"))


def _cell(count: int, true: int, predicted: int, largest: int, names: tuple[str, str], source: Source) -> Markup:
    if true == predicted:
        return tag(
            "td", number(count), class_="right", data_tip=f"{count:,} of class {names[0]} are predicted correctly"
        )
    if not count:
        return tag("td", class_="none")
    tip = f"{count:,} of class {names[0]} {'is' if count == 1 else 'are'} taken for {names[1]}"
    inner = tag("a", number(count), **_find(true, predicted, source), aria_label=tip)
    return tag("td", inner, class_="mistake", style=f"--heat:{count / largest:.2f}", data_tip=tip)


def _pairs(pairs: Sequence[Mapping[str, Any]], source: Source) -> Markup:
    if not pairs:
        return tag(
            "div", tag("h3", "Confused most often"), tag("p", "No test item is predicted wrongly.", class_="soft")
        )
    shown = [
        tag(
            "li",
            tag("b", number(int(pair["count"]))),
            " of ",
            source.class_mark(int(pair["true"])),
            " taken for ",
            source.class_mark(int(pair["predicted"])),
            " ",
            tag("a", "show", **_find(int(pair["true"]), int(pair["predicted"]), source)),
        )
        for pair in pairs[:10]
    ]
    return tag("div", tag("h3", "Confused most often"), tag("ul", *shown, class_="confused"))


def _classes(rows: Sequence[Mapping[str, Any]], source: Source) -> Markup:
    cells = [
        [
            Cell(source.class_mark(int(row["label"])), source.class_name(int(row["label"])), kind="strong"),
            *figures(row["recall"], row["precision"], shown=percent),
            *figures(row["wrong"], row["test"], row["predicted"]),
            Cell(number(row["doubtful"]), row["doubtful"], row["doubtful"] is not None),
            Cell(number(row["train"]), row["train"], True),
        ]
        for row in rows
    ]
    heads = ["Class", "Recall", "Precision", "Wrong", "Test items", "Predicted", "Doubtful labels", "Training items"]
    file = f"{source.record.name}-classes.csv"
    return table(heads, cells, name="Classes", export=file, tall=len(rows) > 15, kind="snug")

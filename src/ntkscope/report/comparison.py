"""The page of a comparison: what changed from one X-ray to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.core import Record
from ntkscope.report import help as helped
from ntkscope.report.document import page_of_parts
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import NONE, as_float, number, percent
from ntkscope.report.source import Source, mapping, name_at, names, rows_of
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views.kernel import TILES

COMPARISON = "comparison"
_FIGURES = {key: name for key, name, _ in TILES}


def comparison(record: Record) -> Markup:
    """The page; what the record lacks is left out."""
    data = mapping(record.metrics.get("comparison"))
    classes = names(record.metrics.get("classes"))
    a, b, source = mapping(data.get("a")), mapping(data.get("b")), Source(record)
    parts = {
        "predictions": ("Predictions", _predictions(mapping(data.get("predictions")), classes)),
        "kernels": ("Kernels", _kernels(rows_of(data, "kernels"), rows_of(data, "kernel_figures"), source)),
        "surrogates": ("Surrogates", _surrogates(rows_of(data, "surrogates"), source)),
        "explanations": ("Explanations", _overlaps(rows_of(data, "overlaps"))),
        "labels": ("Doubtful labels", _doubts(data, classes)),
    }
    notes = [tag("p", str(note), class_="note") for note in data.get("notes") or []]
    return page_of_parts(record.name, [_header(record, a, b), *notes], parts, after=helped.popover())


def _header(record: Record, a: Mapping[str, Any], b: Mapping[str, Any]) -> Markup:
    rows = [
        [Cell(name, kind="strong"), Cell(shown(a.get(key)), a.get(key)), Cell(shown(b.get(key)), b.get(key))]
        for name, key, shown in (
            ("Folder", "folder", str),
            ("Model", "model", str),
            ("Data", "data", str),
            ("Accuracy", "accuracy", percent),
            ("Lazy or rich", "verdict", _word),
            ("Trust", "trust", _word),
            ("Doubtful labels", "doubtful", number),
        )
    ]
    return tag(
        "header",
        tag("p", "What changed from one X-ray to another", class_="eyebrow"),
        tag("h1", record.name),
        table(["", "A", "B"], rows, name="The two X-rays", sortable=False, kind="two"),
    )


def _word(value: Any) -> str:
    return str(value) if value else NONE


def _name(label: Any, classes: Sequence[str]) -> Markup:
    return tag("bdi", name_at(classes, label), class_="class")


def _change(a: Any, b: Any) -> str:
    x = as_float(b) - as_float(a)
    return f"{'+' if x > 0 else ''}{number(x)}" if x == x else NONE


def _predictions(found: Mapping[str, Any], classes: Sequence[str]) -> Markup | None:
    if not found:
        return None
    counts = (
        ("both_right", "right in both", ""),
        ("only_b", "right in B alone", "good"),
        ("only_a", "right in A alone", "bad"),
        ("both_wrong", "wrong in both", ""),
    )
    tiles = [
        tag("div", tag("span", words, class_="tile-name"), tag("b", number(found.get(key))), class_="tile")
        for key, words, _ in counts
    ]
    chance = as_float(found.get("p"))
    said = f"Of {number(found.get('items'))} test items both looked at. " + (
        f"If both networks were equally accurate, a difference like this would come up with probability {number(chance, 2)}."
        if chance == chance
        else ""
    )
    rows = [
        [
            Cell(f"#{row.get('original')}", row.get("original"), True),
            Cell(_name(row.get("true"), classes), row.get("true")),
            Cell(_name(row.get("a"), classes), row.get("a")),
            Cell(_name(row.get("b"), classes), row.get("b")),
            Cell(*_effect(row)),
        ]
        for row in rows_of(found, "changed")
    ]
    title, heads = "Items that changed", ["Test item", "True", "A says", "B says", "Effect"]
    listed = [tag("h3", title), table(heads, rows, name=title, export="changed.csv", tall=True)]
    return join([tag("div", *tiles, class_="tiles"), tag("p", said, class_="soft"), listed if rows else None])


def _effect(row: Mapping[str, Any]) -> tuple[Markup, str]:
    true = row.get("true")
    word, kind = (
        ("fixed", "good")
        if row.get("b") == true
        else ("broken", "bad")
        if row.get("a") == true
        else ("still wrong", "quiet")
    )
    return tag("span", word, class_=f"pill {kind}"), word


def _kernels(rows: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]], source: Source) -> Markup:
    cells = [
        [
            Cell(source.kernel_mark(row.get("name")), row.get("name"), kind="strong"),
            *figures(row.get("cka"), row.get("items")),
        ]
        for row in rows
    ]
    words = (
        "Alignment of the kernel of A with that of B on the training items of both: 1 if one is the other scaled, 0 if they"
        " have nothing in common."
    )
    both = [
        [
            Cell(_FIGURES.get(str(row.get("name")), row.get("name")), row.get("name"), kind="strong"),
            *figures(row.get("a"), row.get("b")),
            Cell(_change(row.get("a"), row.get("b")), None),
        ]
        for row in measured
    ]
    parts: list[Markup] = []
    if cells:
        heads = ["Kernel", "Alignment (CKA)", "Items"]
        parts += [tag("p", words, class_="soft"), table(heads, cells, name="Alignment of kernels", kind="loose")]
    if both:
        title = "Figures of the kernel"
        parts += [tag("h3", title), table(["Figure", "A", "B", "Change"], both, name=title, kind="loose")]
    return join(parts)


def _surrogates(rows: Sequence[Mapping[str, Any]], source: Source) -> Markup | None:
    cells = []
    for row in rows:
        kernel, _, target = str(row.get("name")).partition("|")
        cells.append(
            [
                Cell(source.kernel_mark(kernel), kernel, kind="strong"),
                Cell({"logits": "the network's logits", "labels": "the labels"}.get(target, target), target),
                *figures(row.get("a"), row.get("b"), shown=helped.tau),
                Cell(_change(row.get("a"), row.get("b")), None),
            ]
        )
    heads = ["Kernel", "Fitted to", "τ in A", "τ in B", "Change"]
    return table(heads, cells, name="Surrogates", kind="loose") if cells else None


def _overlaps(rows: Sequence[Mapping[str, Any]]) -> Markup | None:
    found = [(row, as_float(row.get("shared")) / as_float(row.get("k"))) for row in rows if as_float(row.get("k")) > 0]
    if not found:
        return None
    mean = sum(share for _, share in found) / len(found)
    said = (
        f"For {number(len(found))} test items explained in both, {percent(mean, 0)} of the training points that support"
        " the prediction most are the same. Items that share the fewest come first."
    )
    cells = [
        [
            Cell(f"#{row.get('original')}", row.get("original"), True),
            Cell(f"{row.get('shared')} of {row.get('k')}", share, True),
            Cell("same" if row.get("same_class") else "another", bool(row.get("same_class"))),
        ]
        for row, share in found
    ]
    heads = ["Test item", "Shared points", "Class explained"]
    shown = table(heads, cells, name="Explanations", export="explanations.csv", tall=True, kind="loose")
    return join([tag("p", said), shown])


def _doubts(data: Mapping[str, Any], classes: Sequence[str]) -> Markup | None:
    if data.get("doubtful_lacking"):
        return tag("p", f"Not compared ({data['doubtful_lacking']}).")
    new, gone = rows_of(data, "doubtful_new"), rows_of(data, "doubtful_gone")
    kept = data.get("doubtful_kept")
    said = f"{number(len(new))} labels are doubtful in B alone, {number(len(gone))} in A alone, {number(kept)} in both."
    parts: list[Any] = [tag("p", said)]
    for title, rows in (("New in B", new), ("Gone in B", gone)):
        cells = [
            [
                Cell(f"#{row.get('original')}", row.get("original"), True),
                Cell(_name(row.get("label"), classes), row.get("label")),
                *figures(row.get("score_a"), row.get("score_b")),
            ]
            for row in rows
        ]
        if cells:
            heads = ["Training item", "Label", "Score in A", "Score in B"]
            parts += [
                tag("h3", title),
                table(heads, cells, name=title, export=f"doubtful-{title}.csv".lower(), tall=True, kind="loose"),
            ]
    return join(parts) if data else None

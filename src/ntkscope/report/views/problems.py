"""Data problems: training items that look mislabelled, pairs that are nearly the same, items that dominate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import number, percent
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell
from ntkscope.report.views._problem_tables import item, number_of, pair, part, rank
from ntkscope.report.views._review import review
from ntkscope.report.views.registry import VIEWS


@VIEWS.register("problems")
def problems(section: Section, source: Source) -> Drawing:
    """Three tables, each sortable and exportable; item numbers refer to the whole training set."""
    data = section.data
    listed = _contradicted(data.get("mislabelled") or [])
    panel, published = review(listed, source) if listed else (None, {})
    parts: list[Any] = []
    for title, words, heads, rows in (
        (
            "Perhaps mislabelled",
            "Left out of training, these items would be classified differently: a wrong label, or a hard item. Their most"
            " similar training items are the evidence." + _unlisted(len(listed), source),
            ["Rank", "Item", "Number", "Label", "Suggested", "Score", "Decision"],
            [_mislabelled(n, row, source) for n, (_, row) in enumerate(listed, 1)],
        ),
        (
            "Nearly the same",
            "Pairs of training items the kernel can hardly tell apart; if their labels differ, at least one is wrong.",
            ["Rank", "Item", "Number", "Other", "Its number", "Similarity", "Labels", "Copy"],
            [pair(n, row, source) for n, row in enumerate(data.get("duplicates") or [], 1)],
        ),
        (
            "Dominating",
            "The training items with the largest influence on the surrogate's predictions" + _equal_share(source),
            ["Rank", "Item", "Number", "Label", "Share"],
            [_dominating(n, row, source) for n, row in enumerate(data.get("dominating") or [], 1)],
        ),
    ):
        parts.append(part(title, words, heads, rows, source, panel if not parts else None))
    return Drawing(join([_files(source), *parts]), published)


def _unlisted(listed: int, source: Source) -> str:
    more = len(source.doubtful) - listed
    return f" The {listed:,} most doubtful are listed; {more:,} more are in scores.csv." if more > 0 else ""


def _files(source: Source) -> Markup | None:
    """The files with the scores of all training items, if they lie beside the page."""
    if not source.files:
        return None
    links: list[Any] = []
    for name in source.files:
        links += [" and "] * bool(links) + [tag("a", name, href=name)]
    return tag("p", "The scores of every training item are beside this page: ", *links, ".", class_="soft small")


def _contradicted(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Items whose label is not the class the surrogate predicts, with their places; the record also ranks the others."""
    return [(n, row) for n, row in enumerate(rows) if row["label"] != row["suggested"]]


def _equal_share(source: Source) -> str:
    items = source.data.get("train_items")
    return f"; with equal shares each would have {percent(1 / items, 2)}." if isinstance(items, int) and items else "."


def _label(label: Any, source: Source, kind: str = "") -> Cell:
    return Cell(source.class_mark(label), source.class_name(label), kind=kind)


def _mislabelled(n: int, row: Mapping[str, Any], source: Source) -> list[Cell]:
    return [
        rank(n),
        item(int(row["index"]), source),
        number_of(row),
        _label(row["label"], source),
        _label(row["suggested"], source, "suggested"),
        Cell(number(row["score"]), row["score"], True),
        Cell(tag("span", "–", data_decision=int(row["index"])), "", kind="decision"),
    ]


def _dominating(n: int, row: Mapping[str, Any], source: Source) -> list[Cell]:
    return [
        rank(n),
        item(int(row["index"]), source),
        number_of(row),
        _label(row["label"], source),
        Cell(percent(row["share"], 2), row["share"], True),
    ]

"""Data problems: training items with a doubtful label or target, pairs that are nearly the same, items that dominate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import number, percent
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views._review import review
from ntkscope.report.views.registry import VIEWS


@VIEWS.register("problems", "output_problems")
def problems(section: Section, source: Source) -> Drawing:
    """A table per kind of problem, each sortable and exportable; item numbers refer to the whole training set."""
    parts = _of_targets if section.of_regression else _of_labels
    return parts(section.data, source)


def _of_labels(data: Mapping[str, Any], source: Source) -> Drawing:
    listed = _contradicted(data.get("mislabelled") or [])
    panel, published = review(listed, source) if listed else (None, {})
    more, items = len(source.doubtful) - len(listed), source.data.get("train_items")
    unlisted = f" The {len(listed):,} most doubtful are listed; {more:,} more are in scores.csv." if more > 0 else ""
    fair = f"; with equal shares each would have {percent(1 / items, 2)}" if isinstance(items, int) and items else ""
    mislabelled = _part(
        "Perhaps mislabelled",
        "Left out of training, these items would be classified differently: a wrong label, or a hard item. Their most"
        f" similar training items are the evidence.{unlisted}",
        ["Rank", "Item", "Number", "Label", "Suggested", "Score", "Decision"],
        [_mislabelled(n, row, source) for n, (_, row) in enumerate(listed, 1)],
        source,
        panel,
    )
    loud = data.get("dominating") or []
    dominating = _part(
        "Most influential",
        f"The {len(loud):,} training items with the largest influence on the surrogate's predictions{fair}.",
        ["Rank", "Item", "Number", "Label", "Share"],
        [
            [*_item(n, row, source), _label(row["label"], source), *figures(row["share"], shown=percent, digits=2)]
            for n, row in enumerate(loud, 1)
        ],
        source,
    )
    alike = _alike("; if their labels differ, at least one is wrong.", "Labels", data.get("duplicates") or [], source)
    return Drawing(join([_files(source), mislabelled, alike, dominating]), published)


def _of_targets(data: Mapping[str, Any], source: Source) -> Drawing:
    listed = [row for row in data["listed"] if row["score"] > data["threshold"]]
    more = int(data["doubtful"]) - len(listed)
    doubtful = _part(
        "Doubtful targets",
        "Left out of training, these items would be predicted far from their target: a wrong target, or an unusual item."
        + (f" {more:,} more are not listed." if more > 0 else ""),
        ["Rank", "Item", "Number", "Output", "Target", "Predicted without it", "Score"],
        [_doubtful(n, row, source) for n, row in enumerate(listed, 1)],
        source,
    )
    words = (
        f"The fit explains {number(data['loo_r2'])} of the variance of targets it has not seen (R²); the lower that is, the"
        " less a score says."
    )
    alike = _alike(", with the same target or different ones.", "Targets", data["duplicates"], source)
    return Drawing(join([doubtful, alike, tag("p", words, class_="soft small")]))


def _alike(words: str, labels: str, pairs: Sequence[Mapping[str, Any]], source: Source) -> Markup:
    return _part(
        "Nearly the same",
        f"Pairs of training items the kernel can hardly tell apart{words}",
        ["Rank", "Item", "Number", "Other", "Its number", "Similarity", labels, "Copy"],
        [_pair(n, row, source) for n, row in enumerate(pairs, 1)],
        source,
    )


def _files(source: Source) -> Markup | None:
    """The files with the scores of all training items, if they lie beside the page."""
    if not source.files:
        return None
    links: list[Any] = []
    for name in source.files:
        links += [" and "] * bool(links) + [tag("a", name, href=name)]
    return tag("p", "The scores of every training item are beside this page: ", *links, ".", class_="soft small")


def _contradicted(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Items whose label is contradicted, with their places; the record also ranks the others."""
    return [(n, row) for n, row in enumerate(rows) if row["score"] > 0]


def _part(
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


def _item(n: int, row: Mapping[str, Any], source: Source) -> list[Cell]:
    """Its rank, the item, and its number in the whole training set."""
    return [Cell(str(n), n, True, "soft"), *_one(row, "index", "original", source)]


def _one(row: Mapping[str, Any], index: str, original: str, source: Source) -> list[Cell]:
    place, number_of = int(row[index]), int(row.get(original, row[index]))
    shown = Cell(source.items.link("train", place), source.items.text("train", place, 10_000))
    return [shown, Cell(f"#{number_of}", number_of, True)]


def _label(label: Any, source: Source, kind: str = "") -> Cell:
    return Cell(source.class_mark(label), source.class_name(label), kind=kind)


def _mislabelled(n: int, row: Mapping[str, Any], source: Source) -> list[Cell]:
    return [
        *_item(n, row, source),
        _label(row["label"], source),
        _label(row["suggested"], source, "suggested"),
        *figures(row["score"]),
        Cell(tag("span", "–", data_decision=int(row["index"])), "", kind="decision"),
    ]


def _doubtful(n: int, row: Mapping[str, Any], source: Source) -> list[Cell]:
    name = source.output_name(row["output"])
    values = figures(row["target"], row["predicted"], row["score"])
    return [*_item(n, row, source), Cell(tag("bdi", name), name), *values]


def _pair(n: int, row: Mapping[str, Any], source: Source) -> list[Cell]:
    same, exact = bool(row["same_label"]), "exact" if row.get("exact") else "near"
    labels = "same" if same else "different"
    return [
        Cell(str(n), n, True, "soft"),
        *_one(row, "a", "original_a", source),
        *_one(row, "b", "original_b", source),
        *figures(row["similarity"], digits=5),
        Cell(tag("span", labels, class_="pill quiet" if same else "pill bad"), labels),
        Cell(exact, exact),
    ]

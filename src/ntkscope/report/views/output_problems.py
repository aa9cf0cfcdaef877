"""Data problems of a regression: training items with a doubtful target, and pairs that are nearly the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report.markup import join, tag
from ntkscope.report.numbers import number
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell
from ntkscope.report.views._problem_tables import item, number_of, pair, part, rank
from ntkscope.report.views.registry import VIEWS


@VIEWS.register("output_problems")
def output_problems(section: Section, source: Source) -> Drawing:
    """Two tables, sortable and exportable; item numbers refer to the whole training set."""
    data = section.data
    doubtful = [row for row in data["listed"] if row["score"] > data["threshold"]]
    more = int(data["doubtful"]) - len(doubtful)
    parts = [
        part(
            "Doubtful targets",
            "Left out of training, these items would be predicted far from their target: a wrong target, or an unusual item."
            + (f" {more:,} more are not listed." if more > 0 else ""),
            ["Rank", "Item", "Number", "Output", "Target", "Predicted without it", "Score"],
            [_doubtful(n, row, source) for n, row in enumerate(doubtful, 1)],
            source,
        ),
        part(
            "Nearly the same",
            "Pairs of training items the kernel can hardly tell apart, with the same target or different ones.",
            ["Rank", "Item", "Number", "Other", "Its number", "Similarity", "Targets", "Copy"],
            [pair(n, row, source) for n, row in enumerate(data["duplicates"], 1)],
            source,
        ),
    ]
    words = (
        f"The fit explains {number(data['loo_r2'])} of the variance of targets it has not seen (R²); the lower that is, the"
        " less a score says."
    )
    return Drawing(join([*parts, tag("p", words, class_="soft small")]))


def _doubtful(n: int, row: Mapping[str, Any], source: Source) -> list[Cell]:
    name = source.output_name(row["output"])
    return [
        rank(n),
        item(int(row["index"]), source),
        number_of(row),
        Cell(tag("bdi", name), name),
        Cell(number(row["target"]), row["target"], True),
        Cell(number(row["predicted"]), row["predicted"], True),
        Cell(number(row["score"]), row["score"], True),
    ]

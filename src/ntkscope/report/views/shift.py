"""Shift: a sentence for each sample beside the training items, the tests, both in a plane; and memorisation apart from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, interval, number, percent, plain
from ntkscope.report.plots import Frame, Point, Scale, scatter
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table, with_range
from ntkscope.report.views.registry import VIEWS

POINTS = 300  # of each sample in a plot
TESTS = {"c2st": "p, classifier", "mmd": "p, mean discrepancy", "ks": "p, Kolmogorov–Smirnov", "holm": "p, Holm"}
PILLS = {"shift": "bad", "memorised": "bad", "no shift found": "good", "no memorisation found": "good"}


@VIEWS.register("shift")
def shift(section: Section, source: Source) -> Drawing:
    """Cards with verdicts, the table of tests, and scatter plots."""
    judged, level = section.data["judged"], section.data["level"]
    cards = [_card(one, level) for one in judged]
    memorisation = section.data["memorisation"]
    if memorisation is not None:
        cards.append(_memorisation(memorisation))
    pictures = [
        _picture(source.array(f"shift.plane.{k}.{way}"), one, seen)
        for k, one in enumerate(judged)
        for way, seen in enumerate(one["seen"])
    ]
    shown = [picture for picture in pictures if picture is not None]
    return Drawing(
        join(
            [
                tag("div", *cards, class_="cards"),
                tag("div", *shown, class_="pair") if shown else None,
                _table(judged, source) if any(one["seen"] for one in judged) else None,
            ]
        )
    )


def sentence(one: Mapping[str, Any], level: float) -> str:
    """What was found of one sample, for a reader who does not know the tests.

    >>> sentence({"other": "test items", "verdict": "too few items", "seen": [], "why": ["20 items are needed"]}, 0.05)
    'Nothing can be said about the test items: 20 items are needed.'
    """
    if not one["seen"]:
        return f"Nothing can be said about the {one['other']}: {'; '.join(map(str, one['why']))}."
    best = max(one["seen"], key=lambda seen: seen["auc"])
    told = (
        f"of a training item and one of the {one['other']}, a linear classifier tells which is which in"
        f" {percent(best['auc'])} of pairs (50 %: not at all), seen through the {best['embedding']}"
    )
    if one["verdict"] == "shift":
        return f"The {one['other']} differ from the training items beyond chance (p = {number(one['p'], 2)}): {told}."
    return (
        f"No difference between the {one['other']} and the training items beyond chance (p = {number(one['p'], 2)}, level"
        f" {plain(level)}): {told}."
    )


def _card(one: Mapping[str, Any], level: float) -> Markup:
    count = tag("span", f"{number(one['train'])} : {number(one['items'])}", class_="count")
    left_out = [tag("p", f"Left out: {why}", class_="soft small") for why in (one["why"] if one["seen"] else ())]
    fair = [tag("p", about_p(one["p"], level), class_="soft small")] if one["seen"] else []
    return _judged(
        [f"Training items and {one['other']}", count], one["verdict"], sentence(one, level), *fair, *left_out
    )


def about_p(p: Any, level: float) -> str:
    """What the p-value of a verdict is, which of several to judge by, and what it says.

    >>> print(about_p(0.5, 0.05))
    p: how often chance alone, items shuffled between both samples, makes a difference this large. It is corrected for
    the number of tests, as only p, Holm in the table is; judge by these. At most 0.05 would be a sign of a shift: with
    0.5 chance explains the difference, which does not show that there is no shift.
    """
    value = as_float(p)
    chance = "chance explains the difference, which does not show that there is no shift"
    return (
        "p: how often chance alone, items shuffled between both samples, makes a difference this large. It is corrected for the"
        " number of tests, as only p, Holm in the table is; judge by these. At most"
        f" {plain(level)} {'is' if value <= level else 'would be'} a sign of a shift: with {plain(value)}"
        f" {'chance hardly explains the difference' if value <= level else chance}."
    )


def _judged(title: Any, verdict: Any, words: str, *more: Markup) -> Markup:
    pill = tag("span", verdict, class_=f"pill {PILLS.get(str(verdict), 'quiet')}")
    return tag("div", tag("h3", title), tag("p", pill), tag("p", words, class_="small"), *more, class_="card")


def _memorisation(found: Mapping[str, Any]) -> Markup:
    words = (
        f"The network gives {percent(found['train'])} of the training items their label, and {percent(found['test'])} of the"
        f" test items: a difference of {_points(found['gap'])} points"
        f" ({interval(found['low'], found['high'], _points)}). In {percent(found['margin_auc'])} of pairs the training item"
        " has the larger margin (50 %: no difference)."
    )
    if found["verdict"] == "cannot be told from the shift":
        words += " The test items are shifted, which lowers their accuracy as well, so the difference has two possible causes."
    return _judged("Memorisation", found["verdict"], words)


def _points(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f}".replace("-", "−")


def _picture(plane: Any, one: Mapping[str, Any], seen: Mapping[str, Any]) -> Markup | None:
    if plane is None or plane.ndim != 2 or plane.shape[1] < 2 or not np.isfinite(plane).all():
        return None
    first = int(one["train"])
    if not 0 < first < len(plane):
        return None
    x, y = (Scale(float(column.min()), float(column.max())) for column in plane.T[:2])
    frame = Frame(x, y, "principal component 1", "principal component 2")
    points = [
        Point(float(x), float(y), stands_out=other)
        for rows, other in ((plane[:first], False), (plane[first:], True))
        for x, y in rows[:: max(1, len(rows) // POINTS), :2]
    ]
    about = f"Training items (circles) and {one['other']} (diamonds) in two components of the {seen['embedding']}"
    return tag("figure", tag("figcaption", about), scatter(frame, points, describe=about))


def _table(judged: Sequence[Mapping[str, Any]], source: Source) -> Markup:
    rows = [
        [
            Cell(one["other"], one["other"]),
            Cell(seen["embedding"], seen["embedding"]),
            *figures(seen["width"]),
            *figures(*(seen["p"].get(name) for name in TESTS), digits=2),
            with_range(seen, "auc"),
            *figures(seen["plane_auc"], seen["effective"]),
        ]
        for one in judged
        for seen in one["seen"]
    ]
    heads = ["Compared", "Seen through", "Numbers per item", *TESTS.values()]
    heads += ["AUC", "AUC, two components", "Effective items"]
    words = tag(
        "p",
        "AUC: how often a linear classifier orders a pair rightly, on items it was not fitted on; 0.5 is chance. Effective"
        " items: how many training items would be left if they were weighted to look like the other sample.",
        class_="soft small",
    )
    shown = table(heads, rows, name="Tests for a shift", export=f"{source.record.name}-shift.csv", kind="snug carded")
    return join([shown, words])

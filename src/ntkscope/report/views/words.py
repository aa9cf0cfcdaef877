"""Words: texts with the tokens marked that the network reacts to, and the words that matter in most of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.report.markup import Markup, folded, join, tag
from ntkscope.report.numbers import as_float, percent
from ntkscope.report.source import Drawing, Section, Source
from ntkscope.report.tables import Cell, figures, table
from ntkscope.report.views.registry import VIEWS

FIRST = 20  # texts that are shown at once


@VIEWS.register("words")
def words(section: Section, source: Source) -> Drawing:
    """The salient words in a table, the texts beside them."""
    rows = [
        [
            Cell(tag("bdi", word["token"], class_="token-name"), word["token"]),
            *figures(word["share"], shown=percent, digits=0),
            *figures(word["texts"], word["first"]),
        ]
        for word in section.data["words"]
    ]
    said = (
        f"From {int(section.data['looked_at']):,} test texts; the words are those of largest share for the length of their"
        " texts."
    )
    heads = ["Word", "Its share", "In texts", "First in"]
    listed = table(heads, rows, name="Salient words", export=f"{source.record.name}-words.csv", kind="snug")
    every = [_text(text, source) for text in section.data["texts"]]
    texts = tag("ul", *every[:FIRST], class_="salient-texts")
    if every[FIRST:]:
        rest = tag("ul", *every[FIRST:], class_="salient-texts")
        texts = tag("div", texts, folded(f"{len(every) - FIRST:,} more texts", rest))
    both = tag("div", tag("div", listed), texts, class_="salient") if rows else texts
    return Drawing(join([tag("p", said, class_="soft small"), both]))


def _text(text: Mapping[str, Any], source: Source) -> Markup:
    shares = [as_float(share) for share in text["shares"]]
    largest = max((share for share in shares if share == share), default=0.0)
    shown: list[Any] = []
    for token, share in zip(text["tokens"], shares, strict=False):
        if not token:
            continue
        strength = share / largest if largest > 0 and share == share else 0.0
        word = token[1:] if token.startswith("-") and len(token) > 1 else token
        kind = "token top" if strength == 1 else "token"
        shown += [
            None if word is not token else " ",
            tag(
                "bdi",
                word,
                class_=kind,
                style=f"--w:{100 * strength:.0f}%",
                data_tip=f"{percent(share, 0)} of the text",
            ),
        ]
    item = int(text["item"])
    label = tag(
        "a",
        f"test item {source.items.number('test', item)}",
        href=source.items.address("test", item),
        class_="soft small",
    )
    return tag("li", tag("span", *shown, class_="tokens"), " ", label, _answer(item, source))


def _answer(item: int, source: Source) -> Markup | None:
    """What the network said of a test text, where that is wrong."""
    labels, predicted = source.array("labels.test"), source.array("network.test_prediction")
    if labels is None or predicted is None or not item < min(len(labels), len(predicted)):
        return None
    if labels[item] == predicted[item]:
        return None
    mark = source.class_mark
    return tag("span", " ", mark(labels[item]), ", predicted as ", mark(predicted[item]), class_="small wrong")

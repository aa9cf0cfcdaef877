"""The view of words: tokens marked by their share, and what the network said where that is wrong."""

from __future__ import annotations

from html import unescape

from contracts.dataset import given
from contracts.view import ViewContract, read
from ntkscope.core import Record
from ntkscope.report.source import Section, Source
from ntkscope.report.views.words import words
from report.browsing import Made
from report.fixtures.xray import HOSTILE

DATA = {
    "texts": [{"item": 3, "tokens": ["", HOSTILE[1], "fine", "-ly"], "shares": [0.0, 0.5, 0.3, 0.2]}],
    "words": [{"token": HOSTILE[0], "share": 0.5, "texts": 9, "first": 8}],
    "looked_at": 60,
}


class TestWords(ViewContract):
    name = "words"
    data = given(**DATA)


def test_words_are_marked_by_their_share(made: Made) -> None:
    source = Source(Record.open(made(kind="text")))
    body = str(words(Section("words", data=DATA), source).body)
    assert 'class="token top"' in body
    assert "--w:60%" in body  # 0.3 of 0.5
    assert HOSTILE[1] in unescape(body)
    assert read(body).handlers == []

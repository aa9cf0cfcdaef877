"""What every view of the report promises; a view's test names it and inherits this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ntkscope.core import Record
from ntkscope.report import VIEWS
from ntkscope.report.source import Section, Source
from ntkscope.report.views import draw
from report.fixtures.xray import HOSTILE

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "wbr"}
TAGS = (
    "a b bdi button caption code dd details div dl dt figcaption figure h3 i input label li noscript p pre small span"
    " summary table tbody td th thead tr ul svg title circle image line path text"
)
ALLOWED = set(TAGS.split())


class Balanced(HTMLParser):
    """Reads markup, fails on elements that do not close, and collects names, handlers and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.names: set[str] = set()
        self.handlers: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.handlers += [key for key, _ in attrs if key.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(markup: str) -> Balanced:
    """The markup, read by a parser; elements must nest."""
    parser = Balanced()
    parser.feed(markup)
    parser.close()
    assert parser.open == [], f"never closed: {parser.open}"
    return parser


class ViewContract:
    """Inherit and set `name`; and `data`, the section's, unless the made-up record has a section of that name."""

    name: ClassVar[str]
    data: ClassVar[Mapping[str, Any] | None] = None

    def section(self, source: Source) -> Section:
        if self.data is not None:
            return Section(self.name, data=dict(self.data))
        return next(section for section in source.sections() if section.name == self.name)

    @pytest.mark.parametrize("kind", ["image", "text", "vector"])
    def test_it_draws_every_kind_of_data(self, kind: str, made: Callable[..., Path]) -> None:
        source = Source(Record.open(made(kind=kind)))
        drawn = VIEWS[self.name](self.section(source), source)
        assert read(drawn.body).names <= ALLOWED
        assert len(drawn.body) > 100

    def test_hostile_strings_stay_text(self, made: Callable[..., Path]) -> None:
        source = Source(Record.open(made(kind="text", hostile=True)))
        body = VIEWS[self.name](self.section(source), source).body
        found = read(body)
        assert found.names <= ALLOWED
        assert found.handlers == []
        assert not any(text in body for text in HOSTILE if "<" in text)

    def test_a_section_without_its_data_still_has_a_drawing(self, made: Callable[..., Path]) -> None:
        """What another version wrote must not take the page down."""
        source = Source(Record.open(made(kind="image")))
        for data in ({}, {"table": None}, {"verdict": 3, "items": "none", "layers": [1]}):
            read(draw(Section(self.name, data=data), source).body)

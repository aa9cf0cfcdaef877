"""Markup: what goes in as text comes out as text, whatever it is."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.core import UsageError
from ntkscope.report.markup import Markup, code_script, compact, data_script, join, tag, text

TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]))


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.data += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(TEXT, TEXT)
def test_a_parser_reads_back_what_was_said(inner: str, attribute: str) -> None:
    found = read(tag("p", inner, data_tip=attribute))
    assert found.tags == [("p", {"data-tip": attribute})]
    assert found.data == inner


@settings(max_examples=50)
@given(st.recursive(TEXT | st.integers() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)))
def test_data_in_a_script_come_back_and_cannot_leave_it(value: object) -> None:
    script = data_script("x", value)
    start = script.index(">") + 1
    body = script[start : script.rindex("<")]
    assert not set("<>&\u2028\u2029") & set(body)
    assert json.loads(body) == value


def test_control_characters_and_lone_surrogates_are_replaced() -> None:
    assert text("a\x00b\x1f\ud800") == "a\ufffdb\ufffd\ufffd"
    assert "\\u0000" in data_script("x", "\x00")  # JSON escapes it


def test_numbers_for_scripts() -> None:
    assert compact([math.nan, np.float32(0.1), np.array([[1, 2]]), True]) == [None, 0.1, [[1, 2]], True]


def test_children_are_joined() -> None:
    assert join(["<", None, [tag("br"), 3]]) == "&lt;<br>3"
    assert isinstance(join([]), Markup)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "javascript:alert(1)",
            " javascript:alert(1)",
            "\tjavascript:x",
            "JaVaScRiPt:x",
            "http://example.org",
            "//example.org",
        ),
        *("/etc", "\\\\host", "file:///x", "data:text/html,x", "data:image/svg+xml,<svg>"),
    ],
)
def test_links_outside_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="expected '#part'"):
        tag("a", "x", href=address)


@pytest.mark.parametrize("address", ["#x", "a/page.html", "a%3Ab/page.html", "data:image/png;base64,AAAA", "../x.html"])
def test_links_inside_are_taken(address: str) -> None:
    assert address in tag("a", "x", href=address)


@pytest.mark.parametrize("attributes", [{"onclick": "x"}, {"ONLOAD": "x"}, {"a b": "x"}, {"x>": "y"}])
def test_handlers_and_broken_names_are_refused(attributes: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="attribute"):
        tag("p", **attributes)


def test_element_names_are_checked() -> None:
    with pytest.raises(UsageError, match="element"):
        tag("p><script")


def test_a_script_that_would_end_early_is_refused() -> None:
    with pytest.raises(UsageError, match="end too early"):
        code_script("'</ScRipt>'")

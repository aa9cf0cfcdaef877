"""The documents: no dead links, no dead anchors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "papers/ntkscope_papers/**/*.md")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(place))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page: of its headings, as GitHub makes them, and those it names.

    >>> anchors("# One, two: `three`")
    {'one-two-three'}
    """
    prose = FENCE.sub("", text)
    headings = re.findall(r"^#+ +(.+)$", prose, re.MULTILINE)
    named = set(re.findall(r'<a id="([^"]+)"></a>', prose))
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(page: Path, text: str) -> list[str]:
    """The links of a page to files or headings that are not there; links to other sites are not followed."""
    dead = []
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            dead.append(link)
        elif anchor and target.suffix == ".md":
            content = text if target == page else target.read_text(encoding="utf-8")
            if anchor not in anchors(content):
                dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


def test_canary_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "# A head\n[a](b.md) [self](page.md) [head](#a-head) [no](#nothing) [web](https://example.org/x)\n"
    page.write_text(text)
    assert dead_links(page, text) == ["b.md", "#nothing"]

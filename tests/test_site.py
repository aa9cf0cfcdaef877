"""The documentation site: every page and every public name is in it, links lead somewhere, nothing comes from a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.site import reference
from tools.site.checks import Site

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site as `make docs` builds it; warnings are errors there."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Site(folder)


@pytest.mark.guard
def test_every_link_leads_somewhere_and_every_page_is_in_the_navigation(site: Site) -> None:
    assert [*site.dead(), *site.out_of_reach()] == []


@pytest.mark.guard
def test_nothing_comes_from_a_network(site: Site) -> None:
    assert list(site.from_a_network()) == []


@pytest.mark.guard
def test_every_page_of_the_documents_is_in_the_site(site: Site) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb")]
    assert pages
    assert [page for page in pages if page.with_suffix(".html").as_posix() not in site.pages] == []


@pytest.mark.guard
@pytest.mark.parametrize("room", reference.ROOMS)
def test_every_public_name_is_on_its_reference_page(site: Site, room: str) -> None:
    anchors = site.pages[f"reference/{room}.html"].anchors
    assert [name for name in reference.public(room) if f"ntkscope.{room}.{name}" not in anchors] == []


@pytest.mark.guard
def test_search_works_from_a_folder(site: Site, browser: Any) -> None:
    """Without a server and without a network; the first result leads to a page."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site.folder / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("weight decay")
    first = page.locator(".md-search-result__link").first
    first.wait_for(timeout=60_000)
    assert "matching documents" in page.locator(".md-search-result__meta").inner_text()
    first.click()
    page.wait_for_url("**/results/findings.html*", timeout=60_000)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    page.close()


def built(folder: Path, **pages: str) -> Site:
    """A site of a few pages, whose bodies are given."""
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>", encoding="utf-8")
    return Site(folder)


def test_canary_dead_links_and_anchors_are_found(tmp_path: Path) -> None:
    site = built(
        tmp_path,
        index='<a href="other.html">a</a> <a href="other.html#there">b</a> <a href="https://example.org">c</a>',
        other='<h1 id="there">T</h1><a href="#here">d</a> <a href="gone.html">e</a> <img src="gone.png">',
    )
    assert list(site.dead()) == [
        "other.html: #here: no such anchor",
        "other.html: gone.html: no such file",
        "other.html: gone.png: no such file",
    ]
    assert site.elsewhere() == {"https://example.org"}


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<img alt="" src="http://example.org/a.png">',
    ],
)
def test_canary_what_comes_from_a_network_is_found(tmp_path: Path, tag: str) -> None:
    assert len(list(built(tmp_path, index=tag).from_a_network())) == 1


def test_canary_a_page_that_only_text_links_to_is_out_of_reach(tmp_path: Path) -> None:
    site = built(tmp_path, index='<nav><a href="a.html">a</a></nav>', a='<a href="b.html">b</a>', b="")
    assert list(site.out_of_reach()) == ["b.html"]

"""Made-up X-rays, each written once a session, and a browser to look at their pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ntkscope.report import write_page
from report.browsing import Made, Open
from report.fixtures.xray import write_xray


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`made(kind=…, hostile=…)`: the folder of such a record; tests read it and write nothing there."""
    known: dict[tuple[tuple[str, object], ...], Path] = {}

    def make(**options: object) -> Path:
        key = tuple(sorted(options.items()))
        if key not in known:
            known[key] = write_xray(tmp_path_factory.mktemp("made") / "x", **options)
        return known[key]

    return make


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Open a file; whatever the page asks for or complains of is collected in `.asked` and `.complaints`."""
    contexts = []

    def go(path: Path, width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, accept_downloads=True, **options)
        contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.asked, page.complaints = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (page.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield go
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def written(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("pages")

    def write(**options: object) -> Path:
        out = folder / ("-".join(f"{key}-{value}" for key, value in sorted(options.items())) + ".html")
        return out if out.exists() else write_page(made(**options), out)

    return write

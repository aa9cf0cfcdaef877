"""What tests of pages in a browser share."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

Made = Callable[..., Path]
Open = Callable[..., Any]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def quiet(page: Any) -> bool:
    outside = [url for url in page.asked if not url.startswith(("data:", "blob:")) and url != page.url.split("#")[0]]
    assert outside == []
    assert page.complaints == []
    return True


def overflow(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def state(page: Any) -> tuple[str, str, str, str]:
    """What the explorer shows: the item, the bars, the supporting training points, the neighbours."""
    return tuple(page.locator(f"#explorer-{part}").inner_text() for part in ("head", "bars", "top", "nearest"))


def saved(page: Any, button: Any) -> tuple[str, list[list[str]]]:
    with page.expect_download() as download:
        button.click()
    content = Path(download.value.path()).read_bytes().decode("utf-8-sig")
    return download.value.suggested_filename, list(csv.reader(io.StringIO(content)))

"""What tests of pages in a browser share."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Made = Callable[..., Path]
Open = Callable[..., Any]


def quiet(page: Any) -> bool:
    outside = [url for url in page.asked if not url.startswith(("data:", "blob:")) and url != page.url.split("#")[0]]
    assert outside == []
    assert page.complaints == []
    return True


def schemes(page: Any) -> Iterator[str]:
    """The page in light and in dark colours, without loading it again; it is left in dark ones."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        yield scheme


def unfolded(page: Any) -> Any:
    """The page with every long section open."""
    for sentence in page.locator("details.whole-section:not([open]) > summary").all()[::-1]:
        sentence.click()
    return page


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


# Text that cannot be read where it stands: outside the window, cut by a box that does not scroll, or beyond its own table cell.
CLIPPED = """() => {
  const width = document.documentElement.clientWidth, found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest(".hidden, .skip, svg, [role=listbox]")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()].filter((box) => box.width > 1);
    if (!boxes.length) continue;
    const left = Math.min(...boxes.map((box) => box.left)), right = Math.max(...boxes.map((box) => box.right));
    const tell = (why) => found.push(`${why}: ${node.textContent.trim().slice(0, 40)}`);
    const cell = element.closest("td, th");
    if (cell && right > cell.getBoundingClientRect().right + 1) tell("beyond its cell");
    if (cell?.classList.contains("wide") && right > width + 1) tell("sentences that have to be scrolled");
    for (let box = element; ; box = box.parentElement) {
      if (!box) {
        if (left < -1 || right > width + 1) tell("outside the window");
        break;
      }
      const style = getComputedStyle(box);
      if (["auto", "scroll"].includes(style.overflowX) || style.textOverflow === "ellipsis") break;
      if (["hidden", "clip"].includes(style.overflowX)) {
        const inside = box.getBoundingClientRect();
        if (left < inside.left - 1 || right > inside.right + 1) tell("cut");
        break;
      }
    }
  }
  return found;
}"""


def clipped(page: Any) -> list[str]:
    """Texts that cannot be read where they stand; what a table or a list shows when it is scrolled is not among them."""
    return list(page.evaluate(CLIPPED))

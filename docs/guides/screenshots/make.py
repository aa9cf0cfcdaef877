"""Pictures of a page for the documents: `python docs/guides/screenshots/make.py runs/demo/page.html` (needs chromium)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
# name, width, part of the page, theme; the explorer is shown with the first item that the network gets wrong
PICTURES = (
    ("summary-desktop", 1280, None, "light"),
    ("explorer-desktop", 1280, "explorer-panels", "light"),
    ("explorer-dark", 1280, "explorer-panels", "dark"),
    ("problems-desktop", 1280, "s-problems", "light"),
    ("kernel-desktop", 1280, "s-kernel", "light"),
    ("summary-phone", 390, None, "light"),
    ("explorer-phone", 390, "explorer-panels", "light"),
)


def main(page_file: str) -> None:
    """Write the pictures beside this file."""
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path)
        for name, width, part, theme in PICTURES:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            page.goto(Path(page_file).resolve().as_uri())
            if name.startswith("explorer"):
                page.locator(".findings a", has_text="wrong prediction").click()
                page.wait_for_timeout(800)  # it scrolls there smoothly
            page.evaluate(
                "id => id && document.getElementById(id).scrollIntoView({ behavior: 'instant', block: 'start' })", part
            )
            page.wait_for_timeout(200)
            file = HERE / f"{name}.png"
            page.screenshot(path=file)
            Image.open(file).convert("RGB").save(file, optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])

"""What all tests share: settings of Hypothesis, and the skip of tests whose data are not here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# The same examples at every run, so that a red test is a changed program; `make nightly` draws new ones.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session", autouse=True)
def unhurried_disk() -> Iterator[None]:
    """Nobody waits for the disk: that helps against power cuts, which no test makes. Processes that tests kill still wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for all tests of a process: a second Playwright beside it would not start."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path)
        yield running
        running.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("NTKSCOPE_DATA"):
        return
    skip = pytest.mark.skip(reason="$NTKSCOPE_DATA is not set: point it at the folder with the real data sets")
    for item in items:
        if item.get_closest_marker("data") is not None:  # not item.keywords: they hold folder names too
            item.add_marker(skip)

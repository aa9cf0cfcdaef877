"""What all tests share: settings of Hypothesis, and the skip of tests whose data are not here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples at every run, so that a red test is a changed program; `make nightly` draws new ones.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session", autouse=True)
def unhurried_disk() -> Iterator[None]:
    """Nobody waits for the disk: that helps against power cuts, which no test makes. Processes that tests kill still wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("NTKSCOPE_DATA"):
        return
    skip = pytest.mark.skip(reason="$NTKSCOPE_DATA is not set: point it at the folder with the real data sets")
    for item in items:
        if item.get_closest_marker("data") is not None:  # not item.keywords: they hold folder names too
            item.add_marker(skip)

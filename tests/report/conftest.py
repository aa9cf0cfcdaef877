"""Made-up X-rays, each written once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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

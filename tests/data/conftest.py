"""A data root of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ntkscope.data import mnist


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root, and nothing to be found elsewhere."""
    monkeypatch.delenv("NTKSCOPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mnist, "SYSTEM", str(tmp_path / "system"))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"

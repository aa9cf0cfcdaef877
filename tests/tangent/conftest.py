"""What the tests of the engine share."""

from __future__ import annotations

from typing import Any

import pytest

from ntkscope.tangent.kernel.plan import planned
from ntkscope.tangent.trace.probed import Probed


@pytest.fixture(autouse=True)
def plans_made_anew() -> None:
    """Plans are kept by what they were asked for; tests change what plans are made with besides."""
    planned.cache_clear()


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every probe."""
    seen: list[int] = []
    original = Probed.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, subject: Any, sample: Any) -> Probed:
        seen.append(len(sample))
        return original(cls, subject, sample)

    monkeypatch.setattr(Probed, "of", classmethod(of))
    return seen

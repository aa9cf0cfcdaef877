"""What the tests of the engine share."""

from __future__ import annotations

import pytest

from ntkscope.tangent.kernel.schedule import planned


@pytest.fixture(autouse=True)
def plans_made_anew() -> None:
    """Plans are kept by what they were asked for; tests change what plans are made with besides."""
    planned.cache_clear()

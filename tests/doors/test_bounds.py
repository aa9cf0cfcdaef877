"""The helpers of this folder do fail when an input is not refused, waits, takes a gigabyte or is a traceback."""

from __future__ import annotations

import time

import numpy as np
import pytest

from doors.bounds import TooLong, bounded, refused
from ntkscope.core import UsageError


def test_canary_a_wait_is_noticed() -> None:
    with pytest.raises(TooLong), bounded(seconds=0.05):
        time.sleep(5)


def test_canary_two_gigabytes_are_noticed() -> None:
    with pytest.raises(MemoryError), bounded():
        np.zeros(1 << 31, np.uint8)


def test_canary_other_errors_and_none_are_noticed() -> None:
    def other() -> None:
        raise KeyError("kind")

    with pytest.raises(KeyError):
        refused(other)
    with pytest.raises(BaseException, match="DID NOT RAISE"):
        refused(lambda: None)

    def ours() -> None:
        raise UsageError("got 3 outputs, expected 10")

    assert "expected 10" in refused(ours)

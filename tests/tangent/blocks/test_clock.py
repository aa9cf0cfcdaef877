"""The clock of a GPU: events are read when someone asks, and not all of them are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ntkscope.tangent.blocks import clock
from ntkscope.tangent.blocks.clock import StageClock


class Device:
    """A device whose work takes a millisecond from mark to mark, done when it is waited for."""

    def __init__(self) -> None:
        self.now, self.waited = 0, 0

    def mark(self) -> Any:
        self.now += 1
        return Event(self, self.now)


class Event:
    def __init__(self, device: Device, at: int) -> None:
        self.device, self.at = device, at

    def synchronize(self) -> None:
        self.device.waited = max(self.device.waited, self.at)

    def elapsed_time(self, end: Event) -> float:
        assert self.device.waited >= end.at
        return float(end.at - self.at)


def test_marks_are_read_when_someone_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(StageClock, "_mark", lambda self: device.mark())
    monkeypatch.setattr(clock, "HELD", 10)
    timing = StageClock(torch.device("cuda"))
    for _ in range(25):
        with timing("products", "weight"):
            pass
    assert 0 < device.waited < device.now - 10  # only old ones were waited for
    spent = timing.read()
    assert spent.stages == pytest.approx({"products": 0.025})
    assert spent.seconds == pytest.approx({"weight": 0.025})
    assert timing.read().stages == pytest.approx({"products": 0.025})  # once


def test_flops_are_counted_by_stage() -> None:
    timing = StageClock(torch.device("cpu"))
    with timing("features"):
        timing.count("features", 3.0)
        timing.count("features", 4.0)
    assert timing.flops == {"features": 7.0}
    assert timing.read().stages["features"] > 0

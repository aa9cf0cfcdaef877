"""What each stage of a run took: seconds, and floating-point operations.

A GPU works on while the next step is being asked for. There, events mark where a stage begins and ends among the work, and
are read when someone asks, so that the seconds are the device's own and nothing waits; a profiled run waits instead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

HELD = 4096  # marks that are kept; of more, the older half are read, which the device has passed long ago


@dataclass
class StageClock:
    """Seconds by stage and by parameter, flops by stage. `waits`: the device is waited for around every stage."""

    device: torch.device
    waits: bool = False
    stages: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    flops: dict[str, float] = field(default_factory=dict)
    _marks: list[tuple[str, str | None, Any, Any]] = field(default_factory=list)
    _stream: Any = None  # asked for once: a run has thousands of marks

    @contextlib.contextmanager
    def __call__(self, stage: str, name: str | None = None) -> Iterator[None]:
        """Adds the time of its block to a stage, and to a parameter."""
        if self.device.type == "cuda" and not self.waits:
            begin = self._mark()
            yield
            self._marks.append((stage, name, begin, self._mark()))
            if len(self._marks) > HELD:
                self._read(HELD // 2)
            return
        began = self._now()
        yield
        self._add(stage, name, self._now() - began)

    def count(self, stage: str, flops: float) -> None:
        self.flops[stage] = self.flops.get(stage, 0.0) + flops

    def read(self) -> StageClock:
        """With everything that was marked; waits for the device."""
        self._read(len(self._marks))
        return self

    def _read(self, count: int) -> None:
        marks, self._marks = self._marks[:count], self._marks[count:]
        for stage, name, begin, end in marks:
            end.synchronize()
            self._add(stage, name, begin.elapsed_time(end) / 1e3)

    def _add(self, stage: str, name: str | None, spent: float) -> None:
        self.stages[stage] = self.stages.get(stage, 0.0) + spent
        if name is not None:
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def _mark(self) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.current_stream(self.device)
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _now(self) -> float:
        if self.waits and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

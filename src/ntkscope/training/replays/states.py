"""The states of a training, last first, within a budget: some are kept, those between are computed again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from ntkscope.core import Snapshot
from ntkscope.core.progress import Progress
from ntkscope.core.sizes import over_budget
from ntkscope.training.replays.loop import Loop, refuse_moving_buffers, state_bytes
from ntkscope.training.snapshots import load_snapshot, save_snapshot


class States:
    """Every state of a loop whose items are weighted, backwards: those at each `stride` steps are kept, in memory or in
    `folder`, the others in between are computed again, a stretch at a time.

    With k states kept of T, T / k + k are held; two times √T is the least.
    """

    def __init__(
        self, loop: Loop, weights: Tensor, memory: int, folder: Path | None, identity: str, bar: Progress[int]
    ) -> None:
        self.loop, self.weights, self.folder, self.identity = loop, weights, folder, identity
        self._kept: dict[int, Snapshot] = {0: loop.start}
        steps = loop.steps
        first = next(loop.path(loop.start, 1, weights), loop.start)
        refuse_moving_buffers(loop, loop.start, first)
        size = max(1, state_bytes(first))
        stride = _stride(steps, memory // 2 // size, on_disk=folder is not None)
        if stride is None:
            least = 2 * size * min(s - (-steps // s) for s in range(1, max(1, steps) + 1))
            raise over_budget(
                memory, least, f"for the states of {steps} steps", "raise memory=, or give store=, a folder"
            )
        self.stride = stride
        self.last = self._forward(bar)

    def _forward(self, bar: Progress[int]) -> Snapshot:
        marks = range(self.stride, self.loop.steps + 1, self.stride)
        done = 0
        if self.folder is not None:
            on_disk = [step for step in (*marks, self.loop.steps) if self._file(step).exists()]
            done = max(on_disk, default=0)
        state = self._load(done)
        bar.skip(done)
        last = state
        for last in self.loop.path(state, self.loop.steps, self.weights):
            if last.step % self.stride == 0 or last.step == self.loop.steps:
                self._keep(last)
            bar.advance()
        return last

    def at(self, step: int) -> Snapshot:
        """The last state, or one that is kept."""
        return self.last if step == self.loop.steps else self._load(step)

    def backwards(self, until: int) -> Iterator[Snapshot]:
        """The states before the steps until-1, …, 0."""
        while until:
            begin = (until - 1) // self.stride * self.stride
            stretch = [self._load(begin)]
            if begin + 1 < until:
                stretch += self.loop.path(stretch[0], until - 1, self.weights)
            while stretch:
                yield stretch.pop()
            until = begin

    def _file(self, step: int) -> Path:
        assert self.folder is not None
        return self.folder / f"state-{step:09d}.safetensors"

    def _keep(self, state: Snapshot) -> None:
        if self.folder is not None:
            save_snapshot(state, self._file(state.step), store=self.identity)
        else:
            self._kept[state.step] = state

    def _load(self, step: int) -> Snapshot:
        """A state that is kept, or computed from the last one kept before it."""
        state = self.loop.start
        for before in range(step, 0, -1):
            if before in self._kept or (self.folder is not None and self._file(before).exists()):
                state = self._kept.get(before) or load_snapshot(self._file(before), store=self.identity).to(
                    self.loop.device
                )
                break
        return deque(self.loop.path(state, step, self.weights), maxlen=1).pop() if state.step < step else state


def _stride(steps: int, room: int, *, on_disk: bool) -> int | None:
    """1 where all states can be kept, so that none is computed again, else the longest stretch for which there is room.

    >>> _stride(100, 1000, on_disk=False), _stride(100, 20, on_disk=False), _stride(100, 12, on_disk=True)
    (1, 10, 10)
    >>> _stride(100, 12, on_disk=False)
    """
    if on_disk:
        return min(max(1, math.isqrt(steps)), room - 1) if room > 1 else None
    if steps < room:
        return 1
    fitting = [s for s in range(1, max(1, steps) + 1) if s + -(-steps // s) <= room]
    return max(fitting, default=None)

"""The trajectory: snapshots of a training run, made on demand."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from ntkscope.core import Snapshot, UsageError, progress
from ntkscope.core.progress import Progress
from ntkscope.training.run import Run
from ntkscope.training.store import SnapshotStore


class Trajectory(Iterator[Snapshot]):
    """What `fit` returns: iterate over it, or call `.final()`; training happens then, and not before.

    It holds one snapshot at most. With a store the snapshots are also written to disk, and `.store` reads them back;
    without one a trajectory can be iterated only once. The network is where the last snapshot was taken.
    """

    def __init__(
        self,
        run: Run,
        steps: tuple[int, ...],
        *,
        store: SnapshotStore | None = None,
        checkpoint_seconds: float | int = 60.0,
        show: bool = False,
    ) -> None:
        self.run, self.steps, self.store = run, steps, store
        self._seconds, self._show = checkpoint_seconds, show
        self._stored = set() if store is None else {step for step in store if step <= run.step}
        self._next = 0 if store is not None else next((i for i, s in enumerate(steps) if s >= run.step), len(steps))
        self._last: Snapshot | None = None
        self._bar: Progress[None] | None = None
        self._started = self._ended = False
        if store is not None and store.final_step == run.step:
            run.stopped = True

    def __iter__(self) -> Iterator[Snapshot]:
        if self._ended:
            raise UsageError(
                "this trajectory was already iterated; give fit a store= folder and read trajectory.store, or"
                " collect the snapshots as they come: list(fit(...))"
            )
        return self

    def __next__(self) -> Snapshot:
        if self._ended:
            raise StopIteration
        self._started = True
        while self._next < len(self.steps):
            step = self.steps[self._next]
            self._next += 1
            if step in self._stored:
                assert self.store is not None
                return self._hand_out(self.store[step])
            if step < self.run.step:
                continue  # the run was resumed from a later step
            if self.run.stopped and self._last is not None and self._last.step == self.run.step:
                break  # stopped early, and that step was handed out
            try:
                self._advance(step)
            except BaseException:
                self._close_bar()
                raise
            return self._hand_out(self.run.snapshot())
        self._ended = True
        self._close_bar()
        raise StopIteration

    def final(self) -> Snapshot:
        """Train to the end and return the last snapshot; the network is left there."""
        for _ in () if self._ended else self:
            pass
        if self._last is None:
            self._last = self.run.snapshot()
        return self._last

    def __repr__(self) -> str:
        state = "ended" if self._ended else "running" if self._started else "not started: iterate, or call .final()"
        return f"Trajectory(step {self.run.step} of {self.run.total}, {state})"

    def __del__(self) -> None:
        if not getattr(self, "_started", True) and self.run.total > self.run.step:
            warnings.warn(
                "a fit was never run: training happens while its trajectory is iterated; call fit(...).final()",
                RuntimeWarning,
                stacklevel=2,
            )

    def _advance(self, step: int) -> None:
        store, run = self.store, self.run
        if self._bar is None:
            self._bar = progress(total=run.total - run.step, label="training", enabled=self._show)
            self._bar.__enter__()
        if store is None:
            run.advance(step, bar=self._bar)
        else:
            run.advance(
                step, bar=self._bar, every=self._seconds, keep=lambda: store.checkpoint(run.snapshot(measure=False))
            )

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.__exit__()
            self._bar = None

    def _hand_out(self, snapshot: Snapshot) -> Snapshot:
        self._last = snapshot
        if self.store is not None and snapshot.step not in self._stored:
            self.store.add(snapshot)
            self._stored.add(snapshot.step)
        if self.store is not None and snapshot.step == self.run.step and self.run.done:
            self.store.end(snapshot.step)
        return snapshot

"""The tracker: kernels, spectra and alignment of a network, recorded while it trains, within a share of the time."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from ntkscope.core import Record, UsageError
from ntkscope.core.checked import Count, Positive, checked
from ntkscope.core.errors import RecordError
from ntkscope.core.sizes import parse_bytes
from ntkscope.tracking.board import Board, as_board
from ntkscope.tracking.budget import AT_LEAST, MARGIN, Budget, Cost, sizes
from ntkscope.tracking.log import Log, identity, start_of
from ntkscope.tracking.measurement import Measurement, Observer, as_watch, device_of
from ntkscope.tracking.probe import as_probe
from ntkscope.tracking.schedules import Agenda, When, agenda, check_schedule
from ntkscope.tracking.still import bare, writes
from ntkscope.training.moments import LogSpaced
from ntkscope.training.settings import StepReport

WARM_UP = 4  # items


class Tracker:
    """Measures `model` while it trains, without changing how it trains, and writes a record to the folder `out`.

    Call `step(loss)` after every optimizer step, `close()` at the end (or use `with`); `fit(..., on_step=tracker.on_step)`,
    `lightning()` and `hugging_face()` do that. The weights at construction are moment 0.

    - `probe`: some items, (inputs, labels), that kernels are computed on; a few hundred are enough.
    - `watch`: "weights" (singular values and spikes of every weight matrix; "weights:GLOB" of some), kernels by name, and
      "alignment" (of those kernels with the labels, and how fast they rotate); "nfa" (how well each layer's weights agree
      with what the outputs react to; "nfa:GLOB" of some layers).
    - `when`: `LogSpaced(moments)`, `Every(steps)`, `OnPlateau()` or a list of steps; the first needs `total`, the number of
      optimizer steps. The start and, in `close()`, the end are measured in any case.
    - `overhead`: the share of the training time that measuring may take. A measurement that does not fit is made with fewer
      items of the probe, or later, as the series `moments` says. Start and end take a second each where that is more.
    - `directions`: (d,) or (d, k), or a mapping from weights to them: |cos| with the singular vectors of spikes is recorded.
    - `tensorboard`: a folder, or a writer with `add_scalar`. `memory`: for kernels, as in `ns.kernel`.

    If `out` holds this run (it was killed), it is resumed: moments from the first step reported on are measured again. Of
    processes that train together the first one records. Random states, modes, gradients and buffers are left as they are, so
    weights are the same to the bit with and without it.

    Examples:
        >>> with Tracker(model, (x, y), folder, watch=("weights", "ck"), when=[2], total=2) as tracker:
        ...     for _ in range(2):
        ...         tracker.step(loss=0.5)
        >>> record = Record.open(folder)
        >>> record.series("moments")[0]["step"], record.series("spectra")[0]["of"]
        (0, 'weights:layer1.weight')
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        out: str | os.PathLike[str],
        *,
        watch: Sequence[str] | str = ("weights", "ck", "trntk", "alignment"),
        when: When = LogSpaced(60),  # noqa: B008 - frozen
        total: Count | None = None,
        overhead: Positive = 0.05,
        directions: Any = None,
        tensorboard: Any = None,
        memory: str | int | float = "2GiB",
        seed: int = 0,
    ) -> None:
        self.model = bare(model)
        self._when, self._total = check_schedule(when), total
        parse_bytes(memory)
        watched = as_watch(watch)
        items = as_probe(probe, seed, device_of(self.model) if watched.kernels or watched.features else None)
        self._observer = Observer(self.model, items, watched, directions, memory, seed)
        self._budget = Budget(float(overhead))
        self._agenda: Agenda | None = None
        self._step, self._arrived, self._closed = 0, False, False
        self._measured: int | None = None
        self._due: int | None = None
        self._loss: Any = None
        self._log: Log | None = None
        self._board: Board | None = None
        if not writes():
            return
        told = identity(
            self.model,
            self._observer.probe.fingerprint,
            len(self._observer.probe),
            (watch,) if isinstance(watch, str) else tuple(watch),
            self._observer.chosen,
            directions,
        )
        self._board = as_board(tensorboard)
        self._start = start_of(self.model)
        self._log = Log(out, told, seed, self._observer.device)
        self._log.record.put(overhead=overhead, schedule=repr(self._when), total=self._total)
        if self._log.moments:
            self._resume(len(self._log.moments))
        else:
            try:
                self._log.record.put(start=self._start)
                self._first()
            except BaseException as error:
                self._log.close(error)
                raise

    # -- what a training loop calls -----------------------------------------------------------------------------------

    def step(self, loss: Any = None, *, at: int | None = None) -> None:
        """Tell the tracker that an optimizer step is done. `at`: its number, from 1, for a loop that does not start at 0."""
        if self._closed:
            raise UsageError("got step() after close(); expected it before: make a new Tracker to continue this record")
        if self._log is None or not writes():
            return
        step = self._step + 1 if at is None else int(at)
        if step == self._step and self._arrived:
            return  # a batch of several that make one step
        self._arrive(step)
        self._step, self._loss = step, loss
        if self._agenda is None:
            self._agenda = agenda(self._when, self._total, step - 1)
        if self._agenda.due(step, loss) and self._due is None:
            self._due = step
        if self._due is not None:
            self._attempt()

    def on_step(self, report: StepReport) -> None:
        """For `fit(..., on_step=tracker.on_step)`."""
        self.step(report.loss, at=report.step)

    def close(self, error: BaseException | None = None) -> None:
        """Measure the end, and end the record; `error` is what ended the run early, which then has no end to measure."""
        if self._closed:
            return
        self._closed = True
        if self._log is None or not writes():
            return
        facts: dict[str, Any] = {}
        try:
            if error is None and self._arrived and self._measured != self._step:
                self._due = self._step if self._due is None else self._due
                self._measure(self._budget.at_end(len(self._observer.probe)))
            if self._arrived or not self._log.resumed:  # else nothing was left to train
                facts = {"steps": self._step, "end_measured": self._measured == self._step}
        finally:
            if self._log is not None:
                self._log.close(error, **facts, spent_seconds=round(self._budget.spent, 3))
            if self._board is not None:
                self._board.close()

    def abandon(self, error: BaseException) -> None:
        """End the record with this error; further steps are ignored."""
        self.close(error)
        self._closed, self._log = False, None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def lightning(self) -> Any:
        """A callback for `lightning.Trainer(callbacks=[...])`; needs the package `lightning` (or `pytorch_lightning`)."""
        from ntkscope.tracking.callbacks import lightning_callback

        return lightning_callback(self)

    def hugging_face(self) -> Any:
        """A callback for `transformers.Trainer(callbacks=[...])`; needs the packages `transformers` and `accelerate`."""
        from ntkscope.tracking.callbacks import hugging_face_callback

        return hugging_face_callback(self)

    def expect(self, total: int | float | None) -> None:
        """Say how many optimizer steps the run has, if that was not known when the tracker was made."""
        if self._total is None and total is not None and math.isfinite(total) and total >= 1:
            self._total = int(total)

    def __repr__(self) -> str:
        kept = f"{self._log.record.folder}, moments: {len(self._log.moments)}" if self._log else "not recording"
        return f"Tracker({type(self.model).__name__}: {kept})"

    @property
    def record(self) -> Record | None:
        """The record that is written; None in a process that does not record."""
        return None if self._log is None else self._log.record

    # -- measuring ------------------------------------------------------------------------------------------------------

    def _first(self) -> None:
        """Moment 0, with as many items as a second allows: from few to many, each time about twice as many.

        A handful of items goes before, because what is done once (probing the network) is no guide to what later measurements
        cost.
        """
        start = time.perf_counter()
        counts = sizes(len(self._observer.probe))[::-1]
        self._observer.measure(min(WARM_UP, counts[0]), 0, strict=True)
        measurement = self._observer.measure(counts[0], 0, strict=True)
        for count in counts[1:]:
            if time.perf_counter() - start + MARGIN * measurement.cost.predict(count) > AT_LEAST:
                break
            measurement = self._observer.measure(count, 0, strict=True)
        assert self._log is not None
        self._log.keep_kernels(measurement.kernels)
        self._log.keep_weights(measurement.weights)
        self._write(measurement, 0, None, time.perf_counter() - start, 0)

    def _attempt(self) -> None:
        """Measure now, if that can be afforded."""
        count = self._budget.affordable(len(self._observer.probe), self._ahead())
        if count is not None:
            self._measure(count)

    def _measure(self, count: int) -> None:
        assert self._due is not None
        start = time.perf_counter()
        measurement = self._observer.measure(count, self._step)
        self._write(measurement, self._step, self._loss, time.perf_counter() - start, self._step - self._due)

    def _ahead(self) -> float | None:
        """Seconds of training to come, as far as that is known."""
        if self._total is None or self._step >= self._total or self._step <= self._begun:
            return None
        pace = (self._budget.trained - self._trained_before) / (self._step - self._begun)
        return pace * (self._total - self._step)

    def _write(self, measurement: Measurement, step: int, loss: Any, seconds: float, waited: int) -> None:
        assert self._log is not None
        start = time.perf_counter()
        moment: dict[str, Any] = {
            "loss": _number(loss),
            "seconds": round(self._budget.seconds, 3),
            "cost": round(seconds, 4),
            "probe_items": measurement.items,
            "waited": waited,
        }
        if measurement.notes:
            moment["note"] = "; ".join(measurement.notes)[:500]
        try:
            self._log.append(step, measurement.rows, moment)
        except RecordError as error:  # a full disk must not end the training
            warnings.warn(f"the tracker stops here: {error}", RuntimeWarning, stacklevel=4)
            self._log = None
        self._observer.keep(measurement, step)
        if self._board is not None:
            self._board.write(step, {**moment}, measurement.rows)
        self._measured, self._due = step, None
        self._budget.pay(measurement.cost, seconds + time.perf_counter() - start)

    # -- resuming ---------------------------------------------------------------------------------------------------------

    _begun = 0  # the step before the first that was reported here
    _trained_before = 0.0

    def _resume(self, count: int) -> None:
        """Continue after the first `count` moments of the record."""
        assert self._log is not None
        self._log.rewind(count)
        moments = self._log.moments
        if not moments:
            return
        last = moments[-1]
        self._budget.resume(float(last["seconds"]), sum(float(moment["cost"]) for moment in moments))
        self._budget.last = Cost(int(last["probe_items"]), 0.0, float(last["cost"]))
        self._measured = int(last["step"])
        self._observer.initial, self._observer.first_weights = self._log.kernels(), self._log.weights()

    def _arrive(self, step: int) -> None:
        """The first step reported says where this attempt begins: later moments of an earlier one are dropped."""
        assert self._log is not None
        if self._arrived:
            if step < self._step:
                raise UsageError(
                    f"got step {step} after step {self._step}; expected steps in order: make one Tracker per run"
                )
            return
        if step < 1:
            raise UsageError(f"got at={step}; expected the number of optimizer steps done, from 1")
        if self._log.resumed and self._log.moments:
            if step == 1 and self._log.record.metrics.get("start") != self._start:
                raise RecordError(
                    f"{self._log.record.folder} holds a run that started from other weights; expected the same start, or"
                    " another folder; if this run resumes from a checkpoint, say at which step: tracker.step(loss, at=…)"
                )
            self._resume(sum(1 for moment in self._log.moments if moment["step"] < step))
        self._arrived, self._begun, self._trained_before = True, step - 1, self._budget.trained


def _number(loss: Any) -> float | None:
    """The loss as a number: NaN stays NaN; None where it is not known."""
    if loss is None:
        return None
    try:
        return float(loss.detach().float().mean() if isinstance(loss, Tensor) else loss)
    except (TypeError, ValueError) as error:
        raise UsageError(f"got a loss of type {type(loss).__name__}; expected a number or a tensor") from error

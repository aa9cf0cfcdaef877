"""Callbacks: a tracker in the training loops of Lightning and of Hugging Face; imported only when asked for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from ntkscope.core import NtkscopeError, UsageError


class Driven(Protocol):
    """What a training loop asks of a `Tracker`."""

    def expect(self, total: int | float | None) -> None: ...
    def step(self, loss: Any, *, at: int) -> Any: ...
    def close(self, error: BaseException | None = None) -> None: ...
    def abandon(self, error: BaseException) -> None: ...


def lightning_callback(tracker: Driven) -> Any:
    """A `lightning.Callback` that drives `tracker`."""
    base: Any = _first_of(("lightning.pytorch", "pytorch_lightning"), "lightning").Callback

    class TrackerCallback(base):
        step = 0
        losses: tuple[Any, ...] = ()  # of the batches since that step

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            tracker.expect(trainer.estimated_stepping_batches)
            self.step = trainer.global_step

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if loss is not None:  # Lightning divides it by the batches whose gradients are accumulated
                parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
                self.losses += (loss * parts,)
            if trainer.global_step > self.step:
                mean = sum(self.losses) / len(self.losses) if self.losses else None
                self.step, self.losses = trainer.global_step, ()
                _report(tracker, mean, self.step)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            tracker.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            tracker.close(exception)

    return TrackerCallback()


def hugging_face_callback(tracker: Driven) -> Any:
    """A `transformers.TrainerCallback` that drives `tracker`."""
    base: Any = _first_of(("transformers",), "trainer").TrainerCallback

    class TrackerCallback(base):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            tracker.expect(state.max_steps)

        step = 0  # done and not reported yet: its loss is logged after on_step_end
        loss: float | None = None

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.step = state.global_step

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            self.loss = (logs or {}).get("loss", self.loss)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.step:
                _report(tracker, self.loss, self.step)
            self.step = 0

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.on_step_begin(args, state, control)
            tracker.close()

    return TrackerCallback()


def _report(tracker: Driven, loss: Any, step: int) -> None:
    """One step; what is wrong with the tracker must not end the training."""
    try:
        tracker.step(loss, at=step)
    except NtkscopeError as error:
        warnings.warn(f"the tracker stops here: {error}", RuntimeWarning, stacklevel=3)
        tracker.abandon(error)


def _first_of(modules: tuple[str, ...], extra: str) -> Any:
    for name in modules:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise UsageError(
        f"got a call for a callback, but none of {', '.join(modules)} can be imported; run:"
        f' pip install "ntkscope[{extra}]"'
    )

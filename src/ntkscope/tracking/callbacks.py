"""Callbacks: a tracker in the training loops of Lightning and of Hugging Face; imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ntkscope.core import UsageError

if TYPE_CHECKING:
    from ntkscope.tracking.tracker import Tracker


def lightning_callback(tracker: Tracker) -> Any:
    """A `lightning.Callback` that drives `tracker`."""
    base: Any = _first_of(("lightning.pytorch", "pytorch_lightning"), "lightning").Callback

    class TrackerCallback(base):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            tracker.expect(trainer.estimated_stepping_batches)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step > 0:  # batches whose gradients are accumulated make no step
                loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
                tracker.step(loss, at=trainer.global_step)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            tracker.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            tracker.close(exception)

    return TrackerCallback()


def hugging_face_callback(tracker: Tracker) -> Any:
    """A `transformers.TrainerCallback` that drives `tracker`."""
    base: Any = _first_of(("transformers",), "transformers accelerate").TrainerCallback

    class TrackerCallback(base):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            tracker.expect(state.max_steps)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            logged = [entry["loss"] for entry in state.log_history[-3:] if "loss" in entry]
            tracker.step(logged[-1] if logged else None, at=state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            tracker.close()

    return TrackerCallback()


def _first_of(modules: tuple[str, ...], packages: str) -> Any:
    for name in modules:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise UsageError(
        f"got a call for a callback, but none of {', '.join(modules)} can be imported; install it: pip install {packages}"
    )

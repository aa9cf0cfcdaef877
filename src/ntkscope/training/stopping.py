"""Stopping: when a run is good enough to end before its last step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ntkscope.core import Part, UsageError


@dataclass(frozen=True, eq=False)
class StopWhen:
    """Stop once the loss is at most `loss`, or the accuracy at least `accuracy`; both given, both must hold.

    Checked every `every` epochs, on the training part or on `part`, in evaluation mode.

    >>> StopWhen(loss=0.1).reached({"loss": 0.05, "accuracy": 0.9})
    True
    """

    loss: float | int | None = None
    accuracy: float | int | None = None
    every: int = 1
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.loss is None and self.accuracy is None:
            raise UsageError("got StopWhen without loss and accuracy; expected at least one")
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise UsageError(f"StopWhen(accuracy={self.accuracy}); expected a fraction in 0 ... 1")
        if self.every < 1:
            raise UsageError(f"StopWhen(every={self.every}); expected a number of epochs, at least 1")

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether `metrics` are good enough."""
        if self.accuracy is not None and "accuracy" not in metrics:
            raise UsageError(
                "got StopWhen(accuracy=...) with targets that are not class labels; stop on the loss instead"
            )
        return (self.loss is None or metrics["loss"] <= self.loss) and (
            self.accuracy is None or metrics["accuracy"] >= self.accuracy
        )

"""Stopping: when a run is good enough to end before its last step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ntkscope.core import Part, UsageError
from ntkscope.core.checked import Count, Share


@dataclass(frozen=True, eq=False)
class StopWhen:
    """Stop once the loss is at most `loss`, or the accuracy at least `accuracy`; both given, both must hold.

    Checked every `every` epochs, on the training part or on `part`, in evaluation mode.

    Examples:
        >>> StopWhen(loss=0.1).reached({"loss": 0.05, "accuracy": 0.9})
        True
    """

    loss: float | int | None = None
    accuracy: Share | None = None
    every: Count = 1
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.loss is None and self.accuracy is None:
            raise UsageError("got StopWhen without loss and accuracy; expected at least one")

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether `metrics` are good enough."""
        if self.accuracy is not None and "accuracy" not in metrics:
            raise UsageError(
                "got StopWhen(accuracy=...) with targets that are not class labels; stop on the loss instead"
            )
        return (self.loss is None or metrics["loss"] <= self.loss) and (
            self.accuracy is None or metrics["accuracy"] >= self.accuracy
        )

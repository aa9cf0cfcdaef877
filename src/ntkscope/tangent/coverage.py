"""Coverage: the method used for each parameter, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Coverage:
    """What the engine did with every chosen parameter.

    `methods`: kronecker, positions, direct or func (a packed parameter whose slices differ lists them joined by "+").
    `numbers` and `seconds`: how many numbers each parameter holds and how long its features and products took.
    """

    methods: Mapping[str, str]
    numbers: Mapping[str, int]
    seconds: Mapping[str, float]
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds of capture, features, products, writing
    captured: int = 0  # samples run through the model, those captured again counted again
    func_method: str = ""

    def __add__(self, other: Coverage) -> Coverage:
        """The same methods, what both took together."""
        seconds, stages = (
            {key: left.get(key, 0.0) + right.get(key, 0.0) for key in {**left, **right}}
            for left, right in ((self.seconds, other.seconds), (self.stages, other.stages))
        )
        return replace(self, seconds=seconds, stages=stages, captured=self.captured + other.captured)

    def times(self, factor: float) -> Coverage:
        """All seconds multiplied: those of several threads at once as what they took."""
        seconds, stages = ({key: value * factor for key, value in d.items()} for d in (self.seconds, self.stages))
        return replace(self, seconds=seconds, stages=stages)

    def share(self, method: str) -> float:
        """The share of the chosen numbers computed by one method, in [0, 1]."""
        total = sum(self.numbers.values())
        return sum(count for name, count in self.numbers.items() if self.methods[name] == method) / total

    def time_share(self, method: str) -> float:
        """The share of the measured time spent computed by one method, in [0, 1]."""
        total = sum(self.seconds.values())
        spent = sum(seconds for name, seconds in self.seconds.items() if self.methods[name] == method)
        return spent / total if total else 0.0

    @property
    def roads(self) -> Mapping[str, str]:
        """The former name of `methods`."""
        return self.methods

    @property
    def unruled(self) -> tuple[str, ...]:
        """The parameters no rule knows; exact all the same, by `torch.func`."""
        return tuple(name for name, method in self.methods.items() if method == "func")

    def __str__(self) -> str:
        parts = [
            f"{method} {self.share(method):.1%} of parameters, {self.time_share(method):.1%} of time"
            for method in sorted(set(self.methods.values()))
        ]
        return "; ".join(parts)

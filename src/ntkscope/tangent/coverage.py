"""Coverage: which road each parameter took, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Coverage:
    """What the engine did with every chosen parameter.

    `roads`: kronecker, positions, direct or func (a packed parameter whose slices differ lists them joined by "+").
    `numbers` and `seconds`: how many numbers each parameter holds and how long its features and products took.
    """

    roads: Mapping[str, str]
    numbers: Mapping[str, int]
    seconds: Mapping[str, float]
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds of harvest, features, products, writing
    harvested: int = 0  # samples run through the model, those harvested again counted again
    func_method: str = ""

    def __add__(self, other: Coverage) -> Coverage:
        """The same roads, what both took together."""
        seconds, stages = (
            {key: left.get(key, 0.0) + right.get(key, 0.0) for key in {**left, **right}}
            for left, right in ((self.seconds, other.seconds), (self.stages, other.stages))
        )
        return replace(self, seconds=seconds, stages=stages, harvested=self.harvested + other.harvested)

    def times(self, factor: float) -> Coverage:
        """All seconds multiplied: those of several threads at once as what they took."""
        seconds, stages = ({key: value * factor for key, value in d.items()} for d in (self.seconds, self.stages))
        return replace(self, seconds=seconds, stages=stages)

    def share(self, road: str) -> float:
        """The share of the chosen numbers on one road, in [0, 1]."""
        total = sum(self.numbers.values())
        return sum(count for name, count in self.numbers.items() if self.roads[name] == road) / total

    def time_share(self, road: str) -> float:
        """The share of the measured time spent on one road, in [0, 1]."""
        total = sum(self.seconds.values())
        spent = sum(seconds for name, seconds in self.seconds.items() if self.roads[name] == road)
        return spent / total if total else 0.0

    @property
    def unruled(self) -> tuple[str, ...]:
        """The parameters no rule knows; exact all the same, by `torch.func`."""
        return tuple(name for name, road in self.roads.items() if road == "func")

    def __str__(self) -> str:
        parts = [
            f"{road} {self.share(road):.1%} of parameters, {self.time_share(road):.1%} of time"
            for road in sorted(set(self.roads.values()))
        ]
        return "; ".join(parts)

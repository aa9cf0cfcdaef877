"""Interleaved repeats: every candidate once a round, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Timed = Callable[[], float]
"""Does the work once and returns the seconds it took."""


@dataclass(frozen=True)
class Spread:
    """Repeats of one measurement: median, and the smallest and largest seen.

    >>> Spread((3.0, 1.0, 2.0)).median
    2.0
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def __str__(self) -> str:
        spread = f" ({self.low:.3g}–{self.high:.3g})" if len(self.values) > 1 else ""
        return f"{self.median:.3g}{spread}"

    def as_dict(self) -> dict[str, object]:
        return {"median": self.median, "low": self.low, "high": self.high, "repeats": list(self.values)}


def wall(work: Callable[[], object], *, runs: int = 1) -> Timed:
    """`work` as something timed by the wall clock: the mean of `runs` runs, more than one for short work."""

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(runs):
            work()
        return (time.perf_counter() - start) / runs

    return timed


def interleaved(
    candidates: Mapping[str, Timed], *, rounds: int, say: Callable[[str], None] = print
) -> dict[str, Spread]:
    """Seconds of each candidate over `rounds` rounds; one untimed warm-up is the caller's business.

    >>> interleaved({"a": lambda: 1.0, "b": lambda: 2.0}, rounds=2, say=lambda line: None)["b"].median
    2.0
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for k in range(rounds):
        for name, timed in candidates.items():
            seconds[name].append(timed())
        say(f"  round {k + 1}/{rounds}: " + ", ".join(f"{name} {s[-1]:.3g} s" for name, s in seconds.items()))
    return {name: Spread(tuple(s)) for name, s in seconds.items()}


def ratio(slow: Spread, fast: Spread) -> Spread:
    """How many times faster `fast` is, round by round: neighbours in time are compared with each other.

    >>> str(ratio(Spread((4.0, 6.0, 5.0)), Spread((1.0, 2.0, 1.0))))
    '4 (3–5)'
    """
    if len(slow.values) != len(fast.values):
        raise ValueError(
            f"{len(slow.values)} repeats came against {len(fast.values)}; expected as many: interleave them"
        )
    return Spread(tuple(s / f for s, f in zip(slow.values, fast.values)))


def fewest(predicted: Mapping[int, float]) -> int:
    """The setting with the smallest predicted time.

    >>> fewest({16: 3.0, 32: 2.0, 64: 2.5})
    32
    """
    return min(predicted, key=lambda setting: predicted[setting])


def still_improving(history: Sequence[float], *, margin: float = 0.97) -> bool:
    """Whether the last setting of a growing sweep was at least 3 % better than the best before it.

    >>> still_improving([4.0, 3.0]), still_improving([4.0, 3.0, 2.99])
    (True, False)
    """
    return len(history) < 2 or history[-1] < margin * min(history[:-1])

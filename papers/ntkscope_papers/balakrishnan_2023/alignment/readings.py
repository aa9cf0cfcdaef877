"""How what a record holds of a task is read: shares of seeds, lags between jumps, and whether alignment was silent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ntkscope.measures.uncertainty import wilson_interval
from ntkscope_papers.framework.intervals import ANY, interval, short

END = "end"


def number(value: Any) -> float:
    """What the record has as None is NaN."""
    return math.nan if value is None else float(value)


def numbers(values: Iterable[Any]) -> list[float]:
    return [number(value) for value in values]


def mean_of(values: Iterable[Any], within: tuple[float, float] = ANY) -> list[Any]:
    """Mean with its 95 % interval over the seeds where it is defined, and their number; empty if there are none.

    >>> mean_of([1.0, 3.0, None])
    [2.0, -10.7062, 14.7062, 2]
    """
    told = interval(numbers(values), within)
    return [*short(told), told["n"]] if told["n"] else []


def at(row: Mapping[str, Any], epoch: int | str) -> list[float]:
    """Of every seed, a quantity at an epoch, or at the last one before it that was measured."""
    if epoch == END:
        return numbers(row[END])
    measured = max(float(key) for key in row if key != END and float(key) <= float(epoch))
    return numbers(row[f"{measured:g}"])


class Most:
    """In how many seeds something is the case: it holds if that is a majority with confidence, by Wilson's 95 % interval.

    Seeds in which it is undefined (None) do not count. Of ten seeds, nine are enough and eight are not.

    >>> Most([True] * 9 + [False]).holds, Most([True] * 8 + [False] * 2).holds, Most([True, None]).seeds
    (True, False, 1)
    """

    def __init__(self, truths: Sequence[bool | None]) -> None:
        counted = [truth for truth in truths if truth is not None]
        self.seeds, self.true = len(counted), sum(counted)
        self.interval = wilson_interval(self.true, self.seeds)

    @property
    def holds(self) -> bool:
        return self.interval[0] > 0.5

    def told(self) -> dict[str, Any]:
        return {"seeds": f"{self.true} of {self.seeds}", "share, 95 %": [round(end, 3) for end in self.interval]}


def each(*columns: Sequence[float]) -> list[tuple[float, ...] | None]:
    """The values of every seed, side by side; None where one is undefined."""
    return [row if all(math.isfinite(value) for value in row) else None for row in zip(*columns)]


def lags(jumps: Mapping[str, Any], first: str = "cosine", how: str = "epoch") -> dict[str, list[Any]]:
    """How much later than that of `first` each series' jump comes, in epochs, paired by seed: mean and interval.

    `how`: "epoch" for the steepest epoch, "change" for the change of level.
    """
    start = numbers(jumps[first][how])
    found = {}
    for name, row in jumps.items():
        if name != first:
            pairs = each(start, numbers(row[how]))
            found[name] = mean_of(None if pair is None else pair[1] - pair[0] for pair in pairs)
    return found


def common(jumps: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Epoch, share of the rise and p of the jump that seeds have in common."""
    return {
        name: {key: jumps[name]["common"][key] for key in ("epoch", "share", "p")} for name in names if name in jumps
    }


def silence(half: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the alignment's half-rise comes before the loss's half-fall: the interval of the lag lies above 0.

    None where fewer than two seeds have both.
    """
    told = interval(numbers(half["lag"]))
    return {
        "lag, epochs": mean_of(half["lag"]),
        "half-rise of the alignment": mean_of(half["alignment"]),
        "half-fall of the loss": mean_of(half["loss"]),
        "loss fallen by then": mean_of(half["loss fallen"]),
        "silent": None if told["n"] < 2 else bool(told["low"] > 0),
    }

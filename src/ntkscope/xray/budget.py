"""The budget of an X-ray: how long it may take and how much memory it may hold."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ntkscope.core import UsageError
from ntkscope.core.checked import checked
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.core.progress import duration
from ntkscope.core.sizes import parse_bytes

NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
MOMENT = 3.0  # seconds of expected work from which what they took says how fast the machine is
UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_time(time: str | int | float | None) -> float | None:
    """Seconds from "10m", "1h 30m", "90 s" or a plain number; None is no limit.

    >>> parse_time("1h 30m"), parse_time("90"), parse_time(None)
    (5400.0, 90.0, None)
    """
    if time is None:
        return None
    if isinstance(time, int | float):
        seconds = float(time)
    else:
        alone = re.fullmatch(rf"\s*({NUMBER})\s*", time)  # of several numbers each needs its unit
        pieces = [(alone[1], "")] if alone else re.findall(rf"({NUMBER})\s*([a-zA-Z]+)", time)
        whole = alone or re.fullmatch(rf"(?:\s*{NUMBER}\s*[a-zA-Z]+)+\s*", time)
        if not whole or any(unit.lower() not in UNITS for _, unit in pieces):
            raise UsageError(f"got time={time!r}; expected a duration such as '90s', '10m' or '1h 30m'")
        seconds = sum(float(number) * UNITS[unit.lower()] for number, unit in pieces)
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"got time={time!r}; expected more than 0 seconds, or None for no limit")
    return seconds


@checked
@dataclass(frozen=True)
class Budget:
    """`time` ("10m", seconds, None for no limit) and `memory` ("2GiB", bytes), the model and its data not counted.

    Examples:
        >>> budget = Budget("90s", "1GiB")
        >>> budget.seconds, budget.bytes
        (90.0, 1073741824)
    """

    time: str | int | float | None = "15m"
    memory: str | int | float = "2GiB"

    def __post_init__(self) -> None:
        if self.bytes < 2**20:
            raise UsageError(f"got memory={self.memory!r}; expected at least '1MiB'")
        parse_time(self.time)

    @property
    def seconds(self) -> float | None:
        return parse_time(self.time)

    @property
    def bytes(self) -> int:
        return parse_bytes(self.memory)

    def __str__(self) -> str:
        return f"{'no time limit' if self.seconds is None else duration(self.seconds)}, {self.memory}"


@dataclass(frozen=True)
class Clock:
    """How much of a time budget is left for computing, since `began`; `reserved` seconds are kept for the page.

    >>> Clock(None).left(), Clock(60.0, reserved=70.0).left() < 0
    (inf, True)
    """

    seconds: float | None = None
    began: float = field(default_factory=time.perf_counter)
    reserved: float = 0.0

    def left(self) -> float:
        """Seconds until the budget is spent; negative after that."""
        return math.inf if self.seconds is None else self.seconds - self.reserved - self.spent()

    def spent(self) -> float:
        return time.perf_counter() - self.began

    def too_short_for(self, expected: float, smaller: Callable[[float], str] | None = None) -> str | None:
        """Why something expected to take so many seconds does not fit any more, in a sentence; None if it does.

        Starting again helps only what fits the whole budget; `smaller` says what else, of all seconds there are.

        >>> print(Clock(60.0, reserved=3.0).too_short_for(90.0))
        it was expected to take 1 min 30 s, and 5... s of 1 min 00 s were left; it does not fit 1 min 00 s however often
        this X-ray is started: allow more than 1 min 33 s (--time)
        """
        left = max(0.0, self.left())
        if expected <= left or self.seconds is None:
            return None
        said = f"it was expected to take {duration(expected)}, and {duration(left)} of {duration(self.seconds)} were left; "
        if expected <= self.seconds - self.reserved:
            return f"{said}start the same X-ray again to compute it, or allow more time (--time)"
        more = "" if smaller is None else smaller(self.seconds - self.reserved)
        return (
            f"{said}it does not fit {duration(self.seconds)} however often this X-ray is started: allow more than"
            f" {duration(expected + self.reserved)} (--time){more}"
        )


@dataclass
class Pace:
    """How many times longer steps take than was planned for a machine at rest: all of them together.

    The last ones alone would be a matter of chance: another start of the same X-ray would choose other kernels.

    >>> pace = Pace(2.0)
    >>> pace.saw(expected=MOMENT / 2, took=9 * MOMENT)
    >>> pace.now()
    2.0
    >>> pace.saw(expected=3 * MOMENT / 2, took=MOMENT)
    >>> pace.now()
    5.0
    """

    start: float
    expected: float = 0.0
    took: float = 0.0

    def saw(self, expected: float, took: float) -> None:
        """A step is done; one that nothing was expected of says nothing."""
        if expected > 0:
            self.expected, self.took = self.expected + expected, self.took + took

    def now(self) -> float:
        """As planned until enough was seen."""
        return self.took / self.expected if self.expected >= MOMENT else self.start


def as_budget(value: Any) -> Budget:
    """A `Budget` from one, from a time alone, from a pair (time, memory), a mapping, or None for the default.

    >>> as_budget("5m").seconds, as_budget({"memory": "1GiB"}).bytes
    (300.0, 1073741824)
    """
    if value is None:
        return Budget()
    if isinstance(value, Budget):
        return value
    if isinstance(value, Mapping):
        unknown = sorted(set(value) - {"time", "memory"})
        if unknown:
            raise UsageError(f"budget has {', '.join(map(repr, unknown))}; expected time and memory")
        return Budget(**value)
    if isinstance(value, tuple) and len(value) == 2:
        return Budget(*value)
    if isinstance(value, str | int | float):
        return Budget(time=value)
    raise UsageError(f"got budget={value!r}; expected Budget(time, memory), a time such as '10m', or None")


@contextmanager
def half_of_the_budget() -> Iterator[None]:
    """A kernel gets half of the memory; if that is too little, the error says how to use the figure it names.

    >>> with half_of_the_budget():
    ...     raise MemoryBudgetError("the smallest budget that works is 6 MiB")
    Traceback (most recent call last):
    ...
    ntkscope.core.errors.MemoryBudgetError: a kernel of the X-ray gets half of its memory: allow twice the figure that follows
    (the smallest budget that works is 6 MiB)
    """
    try:
        yield
    except MemoryBudgetError as error:
        raise MemoryBudgetError(
            f"a kernel of the X-ray gets half of its memory: allow twice the figure that follows ({error})"
        ) from error

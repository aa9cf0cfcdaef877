"""The budget: what measuring may cost, as a share of the time that training takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

AT_LEAST = 1.0  # seconds that the first measurement and the last may take, whatever the share
FEWEST = 50  # items below which a spectrum says too little to be worth its cost
MARGIN = 1.1  # predictions are raised by this


@dataclass(frozen=True)
class Cost:
    """What one measurement took: seconds that do not depend on the number of items, and seconds that do."""

    items: int
    fixed: float
    by_items: float

    def predict(self, items: int) -> float:
        """Seconds with another number of items: with fewer in proportion, with more as their square, which is too much rather
        than too little (products of pairs grow so; passes through the network grow less).

        >>> Cost(100, 1.0, 2.0).predict(50), Cost(100, 1.0, 2.0).predict(200)
        (2.0, 9.0)
        """
        ratio = items / self.items
        return self.fixed + self.by_items * (ratio * ratio if ratio > 1 else ratio)


def sizes(items: int) -> tuple[int, ...]:
    """How many items a measurement may take, the most first: all, a half, a quarter, … and `FEWEST`.

    >>> sizes(300), sizes(20)
    ((300, 150, 75, 50), (20,))
    """
    found = [items]
    while found[-1] // 2 > FEWEST:
        found.append(found[-1] // 2)
    if found[-1] > FEWEST:
        found.append(FEWEST)
    return tuple(found)


@dataclass
class Budget:
    """Seconds of training so far, seconds spent on measurements, and what the next one would cost.

    A measurement may start when `spent + predicted ≤ share · trained`; trained is the wall time since the start less what was
    spent. With the number of steps to go, what the end will cost is kept back for it. Start and end are measured in any case.
    """

    share: float
    clock: Callable[[], float] = time.perf_counter
    spent: float = 0.0
    before: float = 0.0
    """Seconds of an earlier attempt at this run."""
    last: Cost | None = None
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    def resume(self, seconds: float, spent: float) -> None:
        """Continue after `seconds` of an earlier attempt, of which `spent` were measurements."""
        self.before, self.spent, self.start = seconds, spent, self.clock()

    @property
    def seconds(self) -> float:
        """Wall time since the start of the run, in all attempts."""
        return self.before + self.clock() - self.start

    @property
    def trained(self) -> float:
        """The part of it that was not spent on measurements."""
        return max(self.seconds - self.spent, 0.0)

    @property
    def available(self) -> float:
        """Seconds that a measurement may take now; negative while earlier ones are being earned."""
        return self.share * self.trained - self.spent

    def pay(self, cost: Cost, seconds: float) -> None:
        """Count a measurement that took `seconds`."""
        self.spent += seconds
        self.last = cost

    def affordable(self, items: int, ahead: float | None = None) -> int | None:
        """The most items, of `sizes(items)`, that fit now; None: not even the fewest.

        `ahead`: seconds of training still to come (None: unknown, or this is the end).
        """
        available = self.available
        if available <= 0:
            return None
        if self.last is None:
            return sizes(items)[-1]
        for count in sizes(items):
            cost = MARGIN * self.last.predict(count)
            left = (
                available - cost
            )  # with what is still to be earned, it must pay for as large a measurement at the end
            if left >= 0 and (ahead is None or left + self.share * ahead >= cost):
                return count
        return None

    def at_end(self, items: int) -> int:
        """The most items for the end, which is measured in any case: those that fit, or that take a second, or the fewest."""
        few = sizes(items)[-1]
        cheap = (count for count in sizes(items) if self.last and MARGIN * self.last.predict(count) <= AT_LEAST)
        return self.affordable(items) or next(cheap, few)

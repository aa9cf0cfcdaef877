"""Scales: where a value lies on an axis, and which values carry a label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ntkscope.report.numbers import number

_DECADES = range(1, 13)  # of distances from 0 and 1


@dataclass(frozen=True)
class Scale:
    """A monotone map of [low, high] onto [0, 1]: linear, logarithmic, or in log-odds for probabilities.

    "log1p" is logarithmic in 1 + value, for steps from 0 on; "sqrt" a square root, for counts of which a single one is seen;
    "whole" is linear with whole numbers on the axis.

    >>> Scale(1, 100, "log")(10.0), Scale(0.1, 0.9, "logit")(0.5), Scale(0, 2)(5.0)
    (0.5, 0.5, 1.0)
    >>> Scale(0, 99, "log1p")(9.0), Scale(0, 100, "sqrt")(1.0)
    (0.5, 0.1)
    """

    low: float | int
    high: float | int
    kind: Literal["linear", "log", "log1p", "logit", "sqrt", "whole"] = "linear"

    def __call__(self, value: float | int) -> float:
        """The position of `value`, clipped to the axis."""
        low, high = self._stretch(self.low), self._stretch(self.high)
        inside = min(max(float(value), float(self.low)), float(self.high))
        return (self._stretch(inside) - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """Round values with their labels.

        >>> Scale(0, 1).ticks()[1], Scale(0.001, 2000, "log").ticks()[0], Scale(0.05, 0.95, "logit").ticks()
        ((0.2, '0.2'), (0.001, '10⁻³'), [(0.1, '0.1'), (0.5, '0.5'), (0.9, '0.9')])
        >>> [label for _, label in Scale(1, 3, "whole").ticks()], [label for _, label in Scale(0.2, 1.5, "log").ticks()]
        (['1', '2', '3'], ['0.2', '0.5', '1'])
        """
        if self.kind == "logit":
            return self._probabilities()
        if self.kind == "log":
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first < 1:  # less than two powers of ten
                values = [f * 10.0**k for k in range(first - 1, last + 1) for f in (1, 2, 5)]
                return [(value, f"{value:,.6g}") for value in values if self.low <= value <= self.high]
            step = max(1, math.ceil((last - first + 1) / 6))
            return [(10.0**k, _power(k)) for k in range(first, last + 1, step)]
        if self.kind in ("log1p", "sqrt"):
            return self._spaced(
                [0.0, *(f * 10.0**k for k in range(16) for f in (1, 2, 5) if self.kind == "sqrt" or f == 1)]
            )
        ticks = _round_ticks(float(self.low), float(self.high))
        if self.kind == "whole" and any(value % 1 for value, _ in ticks):
            return [(float(k), f"{k:,}") for k in range(math.ceil(self.low), math.floor(self.high) + 1)]
        return ticks

    def _spaced(self, round_values: list[float], least: float = 0.13) -> list[tuple[float, str]]:
        """Those of some round values that are on the axis and far enough from each other for a label.

        >>> [label for _, label in Scale(0, 40, "sqrt").ticks()], [label for _, label in Scale(0, 5000, "log1p").ticks()]
        (['0', '1', '5', '10', '20'], ['0', '10', '100', '1,000'])
        """
        chosen: list[float] = []
        for value in round_values:
            if self.low <= value <= self.high and (not chosen or self(value) - self(chosen[-1]) >= least):
                chosen.append(value)
        return [(value, f"{value:,.0f}") for value in chosen]

    def _probabilities(self) -> list[tuple[float, str]]:
        """A half, and powers of ten away from 0 and from 1, every second or third of them if there are many."""
        below = [(10.0**-k, _power(-k) if k > 3 else f"{10.0**-k:.{k}f}") for k in _DECADES if 10.0**-k >= self.low]
        above = [(1 - 10.0**-k, f"1−{_power(-k)}" if k > 3 else f"{1 - 10.0**-k:.{k}f}") for k in _DECADES]
        above = [(p, label) for p, label in above if p <= self.high]
        step = max(1, math.ceil((len(below) + len(above)) / 6))
        middle = [(0.5, "0.5")] if self.low <= 0.5 <= self.high else []
        return [*below[step - 1 :: step][::-1], *middle, *above[step - 1 :: step]]

    def _stretch(self, value: float | int) -> float:
        if self.kind == "log":
            return math.log10(value)
        if self.kind == "log1p":
            return math.log1p(value)
        if self.kind == "sqrt":
            return math.sqrt(value)
        return math.log(value / (1 - value)) if self.kind == "logit" else float(value)


def _power(exponent: int) -> str:
    if 0 <= exponent <= 3:
        return f"{10**exponent:,}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _round_ticks(low: float, high: float) -> list[tuple[float, str]]:
    span = high - low
    if span <= 0:
        return [(low, number(low))]
    raw = span / 5
    base = 10.0 ** math.floor(math.log10(raw))
    step = base * min((1, 2, 5, 10), key=lambda factor: abs(factor * base - raw))
    decimals = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(k * step, f"{k * step:,.{decimals}f}".replace("-", "−")) for k in range(first, last + 1)]

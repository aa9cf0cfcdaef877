"""Scales: where a value lies on an axis, and which values carry a label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ntkscope.report.numbers import number

_PROBABILITIES = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1 - 1e-4, 1 - 1e-5, 1 - 1e-6)


@dataclass(frozen=True)
class Scale:
    """A monotone map of [low, high] onto [0, 1]: linear, logarithmic, or in log-odds for probabilities.

    >>> Scale(1, 100, "log")(10.0), Scale(0.1, 0.9, "logit")(0.5), Scale(0, 2)(5.0)
    (0.5, 0.5, 1.0)
    """

    low: float | int
    high: float | int
    kind: Literal["linear", "log", "logit"] = "linear"

    def __call__(self, value: float | int) -> float:
        """The place of `value`, clipped to the axis."""
        low, high = self._stretch(self.low), self._stretch(self.high)
        inside = min(max(float(value), float(self.low)), float(self.high))
        return (self._stretch(inside) - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """Round values with their labels.

        >>> Scale(0, 1).ticks()[1], Scale(0.001, 2000, "log").ticks()[0], Scale(0.05, 0.95, "logit").ticks()
        ((0.2, '0.2'), (0.001, '10⁻³'), [(0.1, '0.1'), (0.5, '0.5'), (0.9, '0.9')])
        """
        if self.kind == "logit":
            shown = [p for p in _PROBABILITIES if self.low <= p <= self.high]
            return [(p, f"{p:.6g}" if p >= 1e-3 else _power(round(math.log10(p)))) for p in shown]
        if self.kind == "log":
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, math.ceil((last - first + 1) / 6))
            return [(10.0**k, _power(k)) for k in range(first, last + 1, step)]
        return _round_ticks(float(self.low), float(self.high))

    def _stretch(self, value: float | int) -> float:
        if self.kind == "log":
            return math.log10(value)
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

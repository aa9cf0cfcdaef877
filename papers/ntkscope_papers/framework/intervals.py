"""Means over seeds with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from scipy import stats

from ntkscope_papers.framework.results import summary

LEVEL = 0.95
ANY, R2, CORRELATION, SHARE = (-math.inf, math.inf), (-math.inf, 1.0), (-1.0, 1.0), (0.0, 1.0)  # ranges of quantities


def interval(values: Iterable[float], within: tuple[float, float] = ANY) -> dict[str, float]:
    """Mean and Student's 95 % interval of it, cut to the range of the quantity; for one value the interval is that value.

    What is not finite is left out.

    >>> found = interval([1.0, 2.0, 3.0])
    >>> round(found["low"], 3), found["mean"], round(found["high"], 3), found["n"]
    (-0.484, 2.0, 4.484, 3)
    >>> interval([0.9, 1.0], R2)["high"]
    1.0
    """
    kept = [float(value) for value in values if np.isfinite(value)]
    if not kept:
        return {"mean": float("nan"), "low": float("nan"), "high": float("nan"), "n": 0}
    told = summary(kept)
    wide = float(stats.t.ppf((1 + LEVEL) / 2, len(kept) - 1)) * told["sem"] if len(kept) > 1 else 0.0
    low, high = max(within[0], told["mean"] - wide), min(within[1], told["mean"] + wide)
    return {"mean": told["mean"], "low": low, "high": high, "n": told["n"]}


def short(told: dict[str, float], digits: int = 4) -> dict[str, Any]:
    """An interval of a mean as a claim shows it.

    >>> short({"mean": 1.23456, "low": 1.0, "high": 2.0, "n": 3})
    {'estimate': 1.2346, 'low': 1.0, 'high': 2.0, 'n': 3}
    """
    return estimate(told["mean"], told["low"], told["high"], int(told["n"]), digits)


def estimate(value: float, low: float, high: float, n: int | None = None, digits: int = 4) -> dict[str, Any]:
    """An estimate with its interval, perhaps from n runs, as a claim shows it: pages know it by these keys.

    >>> estimate(0.5, 0.25, 0.75)
    {'estimate': 0.5, 'low': 0.25, 'high': 0.75}
    """
    found: dict[str, Any] = {"estimate": round(value, digits), "low": round(low, digits), "high": round(high, digits)}
    return found if n is None else {**found, "n": n}


def is_estimate(value: Any) -> bool:
    """Whether it is what `estimate` makes, or a mean with its standard error, as `results.summary` makes it."""
    needed: tuple[set[str], ...] = ({"estimate", "low", "high"}, {"mean", "sem"})
    return isinstance(value, Mapping) and any(keys <= value.keys() <= {*keys, "n"} for keys in needed)

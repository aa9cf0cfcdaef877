"""Numbers as people read them: few digits, thousands separated, a dash if there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ntkscope.core.progress import duration

NONE = "–"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

__all__ = ["NONE", "as_float", "duration", "interval", "number", "percent", "plain", "power", "whole"]


def as_float(value: Any) -> float:
    """`value` as a float, NaN if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value)


def number(value: Any, digits: int = 3) -> str:
    """A number with `digits` significant digits.

    >>> [number(v) for v in (0.71234, 1797, 12345.6, 3.2e-7, 0, None, float("nan"), float("-inf"))]
    ['0.712', '1,797', '12,346', '3.2×10⁻⁷', '0', '–', '–', '−∞']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    x = as_float(value)
    if math.isnan(x):
        return NONE
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == 0:
        return "0"
    size = abs(x)
    if size < 1e-3 or size >= 1e7:
        mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}×10{str(int(exponent)).translate(_RAISED)}".replace("-", "−")
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    decimals = min(decimals, digits) if size >= 0.01 else decimals
    return f"{x:,.{decimals}f}".replace("-", "−")


def whole(value: Any) -> str:
    """A count that may have been written as a float.

    >>> whole(5000.0), whole(0.5), whole(float("nan"))
    ('5,000', '0.5', '–')
    """
    x = as_float(value)
    return number(int(x)) if math.isfinite(x) and x == int(x) else number(value).rstrip("0").rstrip(".")


def power(value: Any) -> str:
    """A small number as a power of ten, with at most two digits before it.

    >>> power(3.14e-7), power(1e-3), power(0.0), power(2.96e-3)
    ('3.1×10⁻⁷', '10⁻³', '0', '3×10⁻³')
    """
    x = as_float(value)
    if not (math.isfinite(x) and x > 0):
        return number(value)
    mantissa, exponent = f"{x:.1e}".split("e")
    mantissa = mantissa.removesuffix(".0")
    raised = f"10{str(int(exponent)).translate(_RAISED)}"
    return raised if mantissa == "1" else f"{mantissa}×{raised}"


def percent(value: Any, digits: int = 1) -> str:
    """A share as percent.

    >>> percent(0.97777), percent(None)
    ('97.8 %', '–')
    """
    x = as_float(value)
    return f"{100 * x:.{digits}f} %".replace("-", "−") if math.isfinite(x) else NONE


def interval(low: Any, high: Any, shown: Any = number) -> str:
    """An interval, or an empty text if an end is not known.

    >>> interval(0.61, 0.7034), interval(None, 1.0)
    ('0.61 to 0.703', '')
    """
    if math.isnan(as_float(low)) or math.isnan(as_float(high)):
        return ""
    ends = [shown(as_float(low)), shown(as_float(high))]
    if shown is number:
        ends = [end.rstrip("0").rstrip(".") if "." in end and "×" not in end else end for end in ends]
    return " to ".join(ends)


def plain(value: Any, longest: int = 300) -> str:
    """Any value of a record in one line of text.

    >>> plain({"lr": 0.1, "widths": [3, 4]}), plain(None), plain("x" * 9, longest=4)
    ('lr: 0.1, widths: 3, 4', '–', 'xxxx…')
    """
    if value is None:
        return NONE
    if isinstance(value, (int, float)):
        shown = number(value, 4)
        return shown.rstrip("0").rstrip(".") if "." in shown and "×" not in shown else shown
    if isinstance(value, Mapping):
        out = ", ".join(f"{key}: {plain(item, longest)}" for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        out = ", ".join(plain(item, longest) for item in value)
    else:
        out = str(value)
    return out if len(out) <= longest else out[:longest] + "…"

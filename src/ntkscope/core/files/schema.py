"""Schemas of what is read from files: small checks that compose, and name the place that does not fit.

A check takes a value and its place, and raises `Mismatch` unless the value fits.

>>> point = fields({"x": number(), "name": text()})
>>> point({"x": 1.5, "name": "a"}, "point")
>>> point({"x": "1.5", "name": "a"}, "point")
Traceback (most recent call last):
...
ntkscope.core.files.schema.Mismatch: point.x is '1.5'; expected a number
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

LARGEST = 1 << 48  # no length, count or size above this is accepted
SHOWN = 80  # characters of a value that an error repeats

Check: TypeAlias = Callable[[Any, str], None]


class Mismatch(ValueError):
    """A value that does not fit its schema; the message says where, what was there and what was expected."""

    def __init__(self, where: str, value: Any, expected: str) -> None:
        super().__init__(f"{where} is {shown(value)}; expected {expected}")


class Missing(Mismatch):
    """Missing entries."""

    def __init__(self, where: str, names: list[str]) -> None:
        ValueError.__init__(self, f"missing {', '.join(names)}" + (f" of {where}" if where else ""))


def shown(value: Any) -> str:
    """A value as shown in an error: truncated when long, never a whole file."""
    if isinstance(value, (dict, list)):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "a very large number"
    whole = repr(value[: SHOWN + 1] if isinstance(value, str) else value)
    return whole if len(whole) <= SHOWN else whole[:SHOWN] + "…"


def anything(value: Any, where: str) -> None:
    """Any JSON value."""


def _fitting(fits: Callable[[Any], bool], expected: str) -> Check:
    """The check of values that `fits` accepts."""

    def check(value: Any, where: str) -> None:
        if not fits(value):
            raise Mismatch(where, value, expected)

    return check


def text(pattern: re.Pattern[str] | None = None, expected: str = "a text") -> Check:
    """A string that fully matches `pattern`, if one is given."""
    return _fitting(lambda v: isinstance(v, str) and (pattern is None or pattern.fullmatch(v) is not None), expected)


def number(least: float | int = -math.inf, most: float | int = math.inf, expected: str = "a number") -> Check:
    """A finite number within bounds; true and false are not numbers."""
    return _fitting(lambda v: type(v) in (int, float) and least <= v <= most, expected)


def whole(least: int = 0, most: int = LARGEST) -> Check:
    """An integer within bounds."""
    return _fitting(lambda v: type(v) is int and least <= v <= most, f"a whole number from {least} to {most}")


flag = _fitting(lambda v: isinstance(v, bool), "true or false")


def one_of(*allowed: Any) -> Check:
    """One of a few values."""
    options = [(type(other), other) for other in allowed]
    return _fitting(lambda v: (type(v), v) in options, f"one of {', '.join(map(repr, allowed))}")


def optional(inner: Check) -> Check:
    """null, or what `inner` accepts."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def list_of(inner: Check, most: int = LARGEST) -> Check:
    """A list of at most `most` values, each accepted by `inner`."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) > most:
            raise Mismatch(where, value, "a list" if most == LARGEST else f"a list of at most {most}")
        for place, item in enumerate(value):
            inner(item, f"{where}[{place}]")

    return check


def mapping(inner: Check = anything, names: Check | None = None) -> Check:
    """A mapping from strings; `inner` checks each value and `names` each key."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise Mismatch(where, value, "a mapping from texts")
        for key, item in value.items():
            if names is not None:
                names(key, f"a key of {where}")
            inner(item, f"{where}.{key}" if where else key)

    return check


def fields(needed: Mapping[str, Check], extra: Mapping[str, Check] | None = None, *, closed: bool = False) -> Check:
    """A mapping with the entries `needed`, and optionally `extra`; others are allowed unless it is `closed`."""
    known = {**needed, **(extra or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise Mismatch(where or "the file", value, "a mapping")
        if missing := [name for name in needed if name not in value]:
            raise Missing(where, missing)
        if closed and (others := [name for name in value if name not in known]):
            raise Mismatch(where, others[0], f"no entry but {', '.join(known)}")
        for name, inner in known.items():
            if name in value:
                inner(value[name], f"{where}.{name}" if where else name)

    return check

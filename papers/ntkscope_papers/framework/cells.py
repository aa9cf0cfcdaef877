"""Values of a record as the text of a table's cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ntkscope_papers.framework.intervals import is_estimate

LISTED, FEW = 5, 3  # values of a list that a short cell shows, and of an entry that comes first there


def as_cell(value: Any, most: int | None = None) -> str:
    """A value in one line, a bar of which would end the cell: nested keys are joined, an estimate has its interval behind it.

    `most`: about how many characters; what is left out is counted. A list is never taken for an interval.

    >>> as_cell({"|a|": [1.23456, 2], "b": {"c": True, "d": {"estimate": 0.2841, "low": 0.26, "high": 0.31, "n": 10}}})
    '∣a∣: 1.235, 2; b: c = yes, d = 0.284 (0.26 to 0.31, n = 10)'
    >>> as_cell({"a": 1, "b": {"c": 2, "d": 3}}, most=4)
    'a: 1; and 2 more in the record'
    """
    entries = list(_entries(value, (), LISTED if most else None))
    shown = 1 + sum(len(_joined(entries[: k + 1])) <= (most or float("inf")) for k in range(1, len(entries)))
    more = f"; and {len(entries) - shown} more in the record" if len(entries) > shown else ""
    return (shortened(_joined(entries[:shown]), most) + more).replace("|", "∣").replace("\n", " ")


def shortened(words: str, most: int | None) -> str:
    """A text of at most so many characters.

    >>> shortened("one two three", 8)
    'one two …'
    """
    return words if most is None or len(words) <= most else words[: words.rfind(" ", 0, most)] + " …"


def ordered(value: Any, like: Any, few: int = 0) -> Any:
    """A mapping whose keys that another one has too come first, as they are there, then those of at most `few` numbers:
    what sums up comes before tables.

    >>> ordered({"a": 1, "b": {"d": 2, "c": 3}}, {"b": {"c": 0}})
    {'b': {'c': 3, 'd': 2}, 'a': 1}
    >>> ordered({"by width": {"8": 0.5, "16": 0.2}, "slope": -0.5}, "the error falls", few=1)
    {'slope': -0.5, 'by width': {'8': 0.5, '16': 0.2}}
    """
    if not isinstance(value, Mapping) or is_estimate(value):
        return value
    known: Mapping[Any, Any] = like if isinstance(like, Mapping) else {}
    rest = [key for key in value if key not in known]
    keys = [key for key in known if key in value] + sorted(rest, key=lambda key: few and _size(value[key]) > few)
    return {key: ordered(value[key], known.get(key), few) for key in keys}


def _size(value: Any) -> int:
    """How many numbers it has; an estimate is one."""
    if isinstance(value, Mapping) and not is_estimate(value):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 1


def _entries(value: Any, path: tuple[str, ...], listed: int | None) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is no mapping, with the keys that lead to it."""
    if isinstance(value, Mapping) and value and not is_estimate(value):
        for key, item in value.items():
            yield from _entries(item, (*path, str(key)), listed)
    elif value is None and not path:
        yield path, ""
    else:
        words = _words(value, listed)
        yield path, words[1:-1] if len(path) < 2 and isinstance(value, list | tuple) else words


def _words(value: Any, listed: int | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if is_estimate(value):
        return _estimated(**value)
    if isinstance(value, list | tuple):
        few = [_words(item, listed) for item in value[:listed]]
        return "[" + ", ".join(few) + (f", … ({len(value)} in all)" if len(value) > len(few) else "") + "]"
    return "–" if value is None or value == {} else str(value)


def _estimated(
    estimate: float = 0.0,
    low: float = 0.0,
    high: float = 0.0,
    mean: float = 0.0,
    sem: float | None = None,
    n: int | None = None,
) -> str:
    """In words, an estimate with its interval or a mean with its standard error.

    >>> _estimated(mean=0.284, sem=0.012, n=10), _estimated(0.284, 0.26, 0.31)
    ('0.284 ± 0.012 (n = 10)', '0.284 (0.26 to 0.31)')
    """
    runs = [] if n is None else [f"n = {n:g}"]
    if math.isnan(estimate + mean):
        return "undefined"
    if sem is not None:
        return f"{mean:.3g} ± {sem:.2g}" + "".join(f" ({words})" for words in runs)
    return f"{estimate:.3g} ({', '.join([f'{low:.3g} to {high:.3g}', *runs])})"


def _joined(entries: list[tuple[tuple[str, ...], str]]) -> str:
    """Entries with the same keys but the last stand behind one another."""
    parts: list[str] = []
    before: tuple[str, ...] = ()
    for path, words in entries:
        if len(path) < 2:
            parts.append(": ".join((*path, words)))
        elif path[:-1] == before:
            parts[-1] += f", {path[-1]} = {words}"
        else:
            parts.append(f"{', '.join(path[:-1])}: {path[-1]} = {words}")
        before = path[:-1]
    return "; ".join(parts)

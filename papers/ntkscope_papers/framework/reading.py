"""A reading: what a record says about one published statement, or which legs it lacks to say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from ntkscope.core import Claim, Record
from ntkscope_papers.framework.legs import not_run
from ntkscope_papers.framework.published import Published

PART = "measured in part"


@dataclass(frozen=True, eq=False)
class Reading:
    """What was measured, whether the check holds, a word on it; or the legs that are missing.

    `lacks`: legs without which the check is not whole: what holds without them is a stand-in. `further`: legs that would add
    to it. `exact`: arithmetic, which no scale makes a stand-in. `seeds`: how many networks were measured, where that matters.
    """

    measured: Any
    holds: bool | None = None
    note: str = ""
    lacks: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    exact: bool = False
    seeds: int | None = None


Read = Callable[[Any, Record], Reading]


def lacking(*legs: str) -> Reading:
    """Of a statement whose measurement is not in the record."""
    return Reading(None, lacks=legs)


def verdicts(
    name: str,
    published: Mapping[str, Published],
    readings: Mapping[str, Read],
    config: Any,
    record: Record,
    difference: str,
) -> Iterator[Claim]:
    """One claim for each statement of the experiment `name`; what was not measured says which command measures it."""
    for key, statement in published.items():
        reading = readings[key](config, record)
        if reading.lacks and reading.measured is None:
            yield statement.judged(None, None, note=not_run(name, reading.lacks))
            continue
        absent = reading.lacks + reading.further
        words = [reading.note, not_run(name, absent) if absent else ""]
        part = PART if reading.holds and reading.lacks else ""
        yield statement.judged(
            reading.measured,
            reading.holds,
            difference="" if reading.exact else "; ".join(word for word in (difference, part) if word),
            note="; ".join(word for word in words if word),
            seeds=reading.seeds,
        )


def needs(*legs: str) -> Callable[[Read], Read]:
    """Decorator: a reading of a record that has these legs; of one that lacks some, it says which."""

    def wrap(read: Read) -> Read:
        @wraps(read)
        def checked(config: Any, record: Record) -> Reading:
            absent = tuple(leg for leg in legs if leg not in record.metrics)
            return lacking(*absent) if absent else read(config, record)

        return checked

    return wrap

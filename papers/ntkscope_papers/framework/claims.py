"""Claims: what a paper states, the check that decides it, and the function that reads the answer from a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from ntkscope.core import Claim, Record
from ntkscope.core.records.claims import FAILS, HOLDS, SMALL
from ntkscope_papers.framework.legs import not_run
from ntkscope_papers.framework.results import rounded

UNDECIDED = "no threshold is published; reported only"
PART = "measured in part"


@dataclass(frozen=True, eq=False)
class Reading:
    """What was measured, whether the check holds, a word on it; or the legs that are missing.

    `lacks`: legs without which the check is not whole: what holds without them is a stand-in. `further`: legs that would add
    to it. `exact`: arithmetic, which no scale makes a stand-in. `seeds`: how many networks were measured, where that matters.
    `other`: what else was not as published, which makes it a stand-in.
    """

    measured: Any
    holds: bool | None = None
    note: str = ""
    lacks: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    exact: bool = False
    seeds: int | None = None
    other: str = ""


Read = Callable[[Any, Record], Reading]
Needs = Iterable[str] | Callable[[Any], Iterable[str]]


def lacking(*legs: str) -> Reading:
    """Of a statement whose measurement is not in the record."""
    return Reading(None, lacks=legs)


@dataclass(frozen=True)
class Statement:
    """A published statement with the function that reads its answer from a record; it is called as that function.

    `id` in the ledger, source, figures, and the check for a verdict. `stand_in` says why the published setting is not
    available at all (another data set, another encoder); empty if it is. `seeds` is how many networks the check needs; a
    verdict from fewer is a stand-in.
    """

    id: str
    source: str
    values: Any
    check: str
    stand_in: str
    seeds: int
    read: Read
    needs: Needs

    def __call__(self, config: Any, record: Record) -> Reading:
        needed = self.needs(config) if callable(self.needs) else self.needs
        absent = tuple(leg for leg in needed if leg not in record.metrics)
        return lacking(*absent) if absent else self.read(config, record)

    def verdict(self, name: str, reading: Reading, difference: str = "") -> Claim:
        """The claim: *reproduced* or *not reproduced* in the published setting, else a *stand-in* that says what held.

        `difference`: how the settings of the experiment `name` differ from the paper's, or `SMALL` and why. A
        reading whose `holds` is None is of a statement without a threshold; what was not measured says which command
        measures it.
        """
        absent = reading.lacks + reading.further
        command = not_run(name, absent) if absent else ""
        if reading.measured is None:
            note = not_run(name, reading.lacks) if reading.lacks else _joined(reading.note, command)
            return Claim(self.id, self.source, self.values, None, self.check, "not testable here", note)
        seeds = reading.seeds or self.seeds
        few = f"{seeds} network(s) where the check asks for {self.seeds}" if seeds < self.seeds else ""
        part = PART if reading.holds and reading.lacks else ""
        small = difference.startswith(SMALL) and not reading.exact
        why = _joined(*(() if reading.exact else (difference, reading.other, part)), self.stand_in, few)
        if reading.holds is None:
            verdict, said = "stand-in", UNDECIDED
        elif why:
            verdict, said = "stand-in", "" if small else HOLDS if reading.holds else FAILS
        else:
            verdict, said = "reproduced" if reading.holds else "not reproduced", ""
        words = _joined(said, why, reading.note, command)
        return Claim(self.id, self.source, self.values, reading.measured, self.check, verdict, words)


def _joined(*words: str) -> str:
    return "; ".join(word for word in words if word)


def claim(
    id: str,
    source: str,
    published: Any,
    check: str = "",
    *,
    needs: Needs = (),
    seeds: int = 1,
    stand_in: str = "",
    through: Callable[..., Reading] | None = None,
) -> Callable[[Callable[..., Any]], Statement]:
    """Decorator: the function of a configuration and a record that reads what became of one published statement.

    `check`: what decides it, in words; the function's docstring, where it is left out. `needs`: the legs without which nothing
    can be said, or a function of the configuration that names them. `through`: for a function that takes other arguments; it is
    called as `through(function, config, record)`.

    >>> @claim("surrogate-x", "Table 9", 0.7, needs=["network"])
    ... def accuracy(config, record):
    ...     "at least 0.6"
    ...     measured = record.metrics["network"]["accuracy"]
    ...     return Reading(measured, measured >= 0.6)
    >>> accuracy.verdict("x", Reading(0.65, True)).verdict, accuracy.verdict("x", Reading(0.65, True), "seeds=1").verdict
    ('reproduced', 'stand-in')
    """

    def of(judge: Callable[..., Any]) -> Statement:
        words = check or " ".join((judge.__doc__ or "").split())
        return Statement(
            id, source, published, words, stand_in, seeds, partial(through, judge) if through else judge, needs
        )

    return of


def decided(
    id: str,
    source: str,
    published: Any,
    check: str,
    leg: str,
    holds: Callable[[Mapping[str, Any]], Any],
    note: str = "",
    shown: tuple[str, ...] = (),
) -> Statement:
    """A statement that the numbers of one leg decide; those `shown` are reported, to four digits, all if none are named."""

    def read(config: Any, record: Record) -> Reading:
        found = {key: value for key, value in record.metrics[leg].items() if key != "seconds"}
        return Reading(rounded({key: found[key] for key in shown or found}, 4), bool(holds(found)), note)

    return claim(id, source, published, check, needs=(leg,))(read)


def claims_of(*places: ModuleType | Iterable[Any]) -> tuple[Statement, ...]:
    """All statements of modules or of other things, in the order they are written; lists and mappings of them included."""
    found: dict[str, Statement] = {}
    for place in places:
        values: Iterable[Any] = vars(place).values() if isinstance(place, ModuleType) else place
        for value in values:
            several = (
                value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
            )
            found |= {one.id: one for one in several if isinstance(one, Statement)}
    return tuple(found.values())

"""The registry of sections: what an X-ray looks at, one file each.

A new section is one file in `sections/` that registers a `Section`, and one view of that name in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ntkscope.core import Registry, UsageError

if TYPE_CHECKING:
    from ntkscope.xray.context import Context
    from ntkscope.xray.rates import Workload

SECTIONS: Registry[Section] = Registry("section")


class Skip(Exception):
    """Raised by a section that has nothing to say here; its text is the reason the page gives."""


@dataclass(frozen=True)
class Finding:
    """What a section found: plain data for the record, and how sure it is, in a sentence. Arrays are kept by `run` itself."""

    data: Mapping[str, Any]
    confidence: str = ""


@dataclass(frozen=True)
class Section:
    """One section: its place on the page, what it says in plain words, what must have run before it, what it costs.

    `run(context)` computes it; `cost(workload)` is what it is expected to take, in seconds, kernels not counted.
    """

    name: str
    place: int
    title: str
    meaning: str
    formula: str
    run: Callable[[Context], Finding]
    after: tuple[str, ...] = ()
    cost: Callable[[Workload], float] = field(default=lambda workload: 0.0)


def register(section: Section) -> Section:
    """Put a section into `SECTIONS`."""
    SECTIONS.add(section.name, section)
    return section


def on_the_page() -> list[Section]:
    """The sections in the order of the page."""
    return sorted(SECTIONS.values(), key=lambda section: section.place)


def in_order() -> list[Section]:
    """The sections in an order in which each comes after those it needs, otherwise as on the page."""
    waiting, done = on_the_page(), list[Section]()
    while waiting:
        known = {section.name for section in done}
        ready = next((section for section in waiting if known.issuperset(section.after)), None)
        if ready is None:
            missing = {name for section in waiting for name in section.after} - known
            raise UsageError(f"sections wait for {', '.join(sorted(missing))}, which never come; mend their `after`")
        waiting.remove(ready)
        done.append(ready)
    return done

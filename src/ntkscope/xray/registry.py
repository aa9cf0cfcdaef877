"""The registry of sections: what an X-ray looks at, one file each.

A new section is one file in `sections/` that registers a `Section`, and one view of that name in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

from ntkscope.core import Registry, UsageError
from ntkscope.xray.result import R
from ntkscope.xray.task import CLASSIFICATION, REGRESSION, TASKS, Task

if TYPE_CHECKING:
    from ntkscope.xray.workload import Workload

SECTIONS: Registry[Section[Any]] = Registry("section")


class Skip(Exception):
    """Raised by a section that does not apply here; the page shows its text as the reason."""


class OutOfTime(Skip):
    """Raised for a section that no longer fits the time budget; the next attempt computes it."""


@dataclass(frozen=True)
class Finding(Generic[R]):
    """What a section found, and how certain it is, in a sentence. `run` stores arrays itself.

    `late`: whether a part of it is missing for want of time; more time computes it again.
    """

    result: R
    confidence: str = ""
    late: bool = False


def _nothing(work: Workload) -> float:
    return 0.0


@dataclass(frozen=True)
class ForRegression:
    """What a section says, finds and costs on the page of a regression, where that differs."""

    meaning: str
    formula: str
    result: type[Any]
    cost: Callable[[Workload], float]


@dataclass(frozen=True)
class Section(Generic[R]):
    """One section: its place on the page, what it says in plain words, what must have run before it, what it costs.

    `run(context)` computes it and returns a `result` of that type. `after`: the sections whose results it uses.
    `cost(workload)`: what it is expected to take, in seconds, kernels not counted. `essential`: computed before the others,
    and on fewer items rather than not at all. `every_attempt`: computed after all others, and again by each attempt.
    `keeps_time`: `run` itself ends in time, with what it has by then. `tasks`: of which networks a page shows it; one that
    asks the context for what this network does not have (classes in a regression) is skipped and says so. `regression`: its
    form on pages of regressions, where it needs one of its own. `needs`: what an X-ray must have been given for the section
    to be on its page ("tracked", "training", "texts"); empty for none.
    """

    name: str
    place: int
    title: str
    meaning: str
    formula: str
    run: Callable[[Any], Finding[R]]  # of a `Context`
    result: type[R]
    after: tuple[Section[Any], ...] = ()
    cost: Callable[[Workload], float] = _nothing
    essential: bool = False
    every_attempt: bool = False
    keeps_time: bool = False
    tasks: tuple[Task, ...] = tuple(TASKS.values())
    needs: str = ""
    regression: ForRegression | None = None

    def of(self, task: Task) -> Section[R]:
        """The form of the section that pages of a task show, under its own name; the section itself if it has but one."""
        if self.regression is None or task is not REGRESSION:
            return self
        return replace(
            self,
            **vars(self.regression),
            name=f"{task.prefix}{self.name}",
            after=tuple(before.of(task) for before in self.after),
            tasks=(task,),
            regression=None,
        )

    @property
    def key(self) -> str:
        """The metric under which a record holds it."""
        return f"section:{self.name}"

    def entry(self, status: str, finding: Finding[R] | None = None, why: str | None = None) -> dict[str, Any]:
        """What a record holds of it."""
        return {
            "name": self.name,
            "title": self.title,
            "meaning": self.meaning,
            "confidence": finding.confidence if finding else "",
            "formula": self.formula,
            "status": status,
            "why": why,
            "seconds": 0.0,
            "data": finding.result.to_record() if finding else {},
            **({"late": True} if finding and finding.late else {}),
        }

    def read(self, metrics: Mapping[str, Any]) -> R | None:
        """The result in a record's metrics; None where the section is not done there."""
        entry = metrics.get(self.key)
        if not isinstance(entry, Mapping) or entry.get("status") != "done":
            return None
        return self.result.from_record(entry.get("data"))


def register(section: Section[R]) -> Section[R]:
    """Put a section into `SECTIONS`, each of its forms under its own name."""
    if section.regression is not None:
        section = replace(section, tasks=(CLASSIFICATION,))
        SECTIONS.add(section.of(REGRESSION).name, section.of(REGRESSION))
    SECTIONS.add(section.name, section)
    return section


def on_the_page(task: Task = CLASSIFICATION, given: Container[str] = ()) -> list[Section[Any]]:
    """The sections for networks of one task, in the order of the page; those that need something only where it was given."""
    shown = (
        section
        for section in SECTIONS.values()
        if task in section.tasks and (not section.needs or section.needs in given)
    )
    return sorted(shown, key=lambda section: section.place)


def in_order(task: Task = CLASSIFICATION, given: Container[str] = ()) -> list[Section[Any]]:
    """The sections in an order in which each comes after those it needs, essential ones first, otherwise as on the page."""
    waiting, done = on_the_page(task, given), list[Section[Any]]()
    absent = set(SECTIONS) - {section.name for section in waiting}
    while waiting:
        known = {section.name for section in done} | absent
        ready = [section for section in waiting if all(before.name in known for before in section.after)]
        if not ready:
            missing = {before.name for section in waiting for before in section.after} - known
            raise UsageError(f"sections wait for {', '.join(sorted(missing))}, which never run; correct their `after`")
        first = min(ready, key=lambda section: (section.every_attempt, not section.essential))
        waiting.remove(first)
        done.append(first)
    return done

"""Legs of a long experiment: named measurements that may run one at a time, in any order, into one record.

A configuration with a field `legs` names those that a run makes, each by the beginning of its key; none means all. The field is
no setting: it is left out of the record's configuration, so that runs of different legs resume the same record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ntkscope.core import Record, UsageError
from ntkscope.training.store import SnapshotStore
from ntkscope_papers.framework.results import once

_SHOWING: ContextVar[bool] = ContextVar("showing", default=False)


@dataclass(frozen=True, eq=False)
class Leg:
    """One measurement: the key of its result in the record, and the function that makes it.

    An `optional` one runs only if it is named.
    """

    key: str
    compute: Callable[[], Mapping[str, Any]]
    optional: bool = False


def chosen(legs: Sequence[Leg], names: Iterable[str]) -> list[Leg]:
    """Those whose keys begin with one of `names`; without names all but the optional ones. A name of none is an error.

    >>> several = [Leg("solver/x1", dict), Leg("solver/x2", dict), Leg("sgd/x1", dict, optional=True)]
    >>> [[leg.key for leg in chosen(several, names)] for names in ((), ("solver/x2", "sgd"))]
    [['solver/x1', 'solver/x2'], ['solver/x2', 'sgd/x1']]
    """
    wanted = tuple(names)
    for name in wanted:
        if not any(_begins(leg.key, name) for leg in legs):
            raise UsageError(
                f"got legs={name!r}; expected the beginning of one of: {', '.join(leg.key for leg in legs)}"
            )
    if not wanted:
        return [leg for leg in legs if not leg.optional]
    return [leg for leg in legs if any(_begins(leg.key, name) for name in wanted)]


def _begins(key: str, name: str) -> bool:
    return key == name or key.startswith(name.rstrip("/") + "/")


def run_legs(record: Record, legs: Sequence[Leg], names: Iterable[str], *, progress: bool) -> None:
    """Make every chosen measurement that the record lacks."""
    wanted, before = chosen(legs, names), _SHOWING.set(progress)
    try:
        with record.stage("legs", total=len(legs), progress="auto" if progress else False) as stage:
            for leg in wanted:
                if progress:
                    stage.message(f"leg {leg.key}")
                once(record, leg.key, leg.compute)
            made = sum(leg.key in record.metrics for leg in legs)
            stage.message("")
            stage.advance(max(0, made - stage.done))
    finally:
        _SHOWING.reset(before)


def showing() -> bool:
    """Whether the run to which the present leg belongs shows progress; a leg's long trainings then show theirs below it."""
    return _SHOWING.get()


@contextmanager
def unfinished(record: Record, key: str) -> Iterator[Path]:
    """A folder for what a leg has done so far, from which it continues if it is killed; removed when the leg has ended."""
    folder = Path(record.folder) / "unfinished" / key.replace("/", "-")
    yield folder
    SnapshotStore(folder).discard()
    with suppress(OSError):  # other legs may have theirs in it
        folder.parent.rmdir()


def not_run(name: str, keys: Iterable[str]) -> str:
    """The note of a statement whose measurement is not in the record, with the command that makes it.

    >>> not_run("binary-mnist", ["sgd/standard/x60"])
    'not run: `ntkscope run binary-mnist --scale paper --out DIR --set \\'legs=["sgd/standard/x60"]\\'`'
    """
    listed = ", ".join(f'"{key}"' for key in keys)
    return f"not run: `ntkscope run {name} --scale paper --out DIR --set 'legs=[{listed}]'`"

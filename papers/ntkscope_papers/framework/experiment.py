"""The parts of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Self

from ntkscope.core import Claim, Record, UsageError
from ntkscope_papers.framework.published import Published
from ntkscope_papers.framework.reading import Read, verdicts


def scaled(**settings: Any) -> classmethod[Any, [], Any]:
    """The smoke scale, as `smoke = scaled(...)` in a configuration: what differs from the paper scale."""
    return classmethod(lambda cls: cls(**settings))


class Scales:
    """A configuration, a frozen dataclass of plain values, whose defaults are the paper scale: the published setting, or the
    nearest that is feasible. `smoke` is the mechanics, in seconds on two cores."""

    @classmethod
    def paper(cls) -> Self:
        return cls()


Judge = Callable[[Any, Record, str], Iterable[Claim]]  # config, record, how the setting differs from the published one
Draw = Callable[[Record], Mapping[str, Any]]  # a record to matplotlib figures by name


@dataclass(frozen=True)
class Experiment:
    """One published result: its configuration, the function that measures it, what was published, verdicts, figures.

    `func(config, record, device=..., root=..., seed=..., progress=...)` stores its measurements in the record, piece
    by piece; `judge` and `draw` read the record alone, so both can be done again later, elsewhere.
    """

    name: str
    func: Callable[..., None]
    config: type[Any]
    published: tuple[Published, ...]
    judge: Judge
    draw: Draw
    free: tuple[str, ...] = field(default=())  # settings that may differ from paper() without making it a stand-in
    legs: tuple[str, ...] = field(
        default=()
    )  # settings that say what one call computes: no part of the record's config

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.func.__doc__)  # what `ntkscope list` shows
        ids = [claim.id for claim in self.published]
        if len(set(ids)) != len(ids):
            raise UsageError(
                f"experiment {self.name!r} has repeated claim ids among {', '.join(ids)}; expected each once"
            )

    def run(self, scale: str = "smoke", **options: Any) -> Record:
        """`framework.run.run` of this experiment."""
        from ntkscope_papers.framework.run import run

        return run(self, scale, **options)

    def difference(self, config: Any) -> str:
        """How `config` differs from the paper scale, in words; empty if it does not."""
        paper = self.config.paper()
        names = [f.name for f in fields(config) if f.name not in (*self.free, *self.legs)]
        other = [n for n in names if getattr(config, n) != getattr(paper, n)]
        return ", ".join(f"{n}={getattr(config, n)!r} instead of {getattr(paper, n)!r}" for n in other)


def experiment(
    func: Callable[..., None],
    name: str,
    *,
    config: type[Any],
    published: Iterable[Published] | Mapping[str, Published],
    judge: Judge | Mapping[str, Read],
    draw: Draw,
    free: Iterable[str] = (),
    legs: Iterable[str] = ("legs",),
) -> Experiment:
    """The experiment that `func` runs; an entry point in the group "ntkscope.experiments" makes it known.

    `judge`: a function of the record, or a reading for each key of `published`. `legs`: those of its settings that say what
    one call computes.
    """
    statements = tuple(published.values() if isinstance(published, Mapping) else published)
    if isinstance(judge, Mapping):
        assert isinstance(published, Mapping)
        judge = partial(verdicts, name, published, judge)

    chosen = tuple(leg for leg in legs if hasattr(config, leg))

    return Experiment(name, func, config, statements, judge, draw, tuple(free), chosen)

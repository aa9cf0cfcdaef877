"""An experiment: a configuration whose methods measure, judge and draw one published result."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_type_hints

import torch

from ntkscope.core import Claim, NtkscopeError, Record, UsageError
from ntkscope.core.arguments import as_device
from ntkscope.core.errors import RecordError
from ntkscope.core.records.claims import SMALL
from ntkscope_papers.framework.claims import Statement, claims_of
from ntkscope_papers.framework.drawing import save_figures
from ntkscope_papers.framework.gather import gather
from ntkscope_papers.framework.legs import Leg, run_legs

SCALES = ("smoke", "paper")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Run:
    """One call of an experiment: what it measures with, where, and the record it writes to."""

    experiment: Experiment
    record: Record
    device: torch.device
    root: str | None
    seed: int
    progress: bool

    @cached_property
    def data(self) -> Any:
        """What the experiment's `prepare` loads, once, when the first leg asks for it."""
        return self.experiment.prepare(self)


def leg(
    key: str = "", *, over: Callable[[Any], Iterable[Any]] | None = None, optional: bool | Callable[..., bool] = False
) -> Callable[[F], F]:
    """Decorator: a method `(self, run, *case)` that measures one leg for each case of `over(self)`, stored under `key`.

    `key` is filled with the case: `@leg("width/{}/{}", over=lambda self: product(ENDS, self.widths))`; the method's name,
    where it is left out. An `optional` one runs only if it is named; a function of `(self, *case)` says which cases are.
    """

    def mark(method: F) -> F:
        method.leg = (key or method.__name__, over or (lambda self: [()]), optional)  # type: ignore[attr-defined]
        return method

    return mark


def figure(method: F) -> F:
    """Decorator: a method of a configuration and its record that draws the figure of its name, or a mapping of several."""
    method.figure = True  # type: ignore[attr-defined]
    return method


@dataclass(frozen=True)
class Experiment:
    """One published result. Subclass it as a frozen dataclass of plain values whose defaults are the paper's.

    `smoke` holds what differs at the scale that only tries the mechanics, in seconds. Settings in `free` may differ from the
    paper's without making it a stand-in; those in `parts` say what one call computes, and are no part of the record's
    configuration. Methods marked `@leg` measure, `@claim` judges and `@figure` draws, the last two from the record alone, so
    both can be done again later, elsewhere. `statements` are claims written in another file.
    """

    legs: tuple[str, ...] = ()

    name: ClassVar[str]
    smoke: ClassVar[Mapping[str, Any]] = {}
    free: ClassVar[Iterable[str]] = ()
    parts: ClassVar[tuple[str, ...]] = ("legs",)
    statements: ClassVar[tuple[Statement, ...]] = ()

    @classmethod
    def published(cls) -> tuple[Statement, ...]:
        """Every statement this experiment judges: those of its class, of its file, and its `statements`."""
        every = claims_of(
            *(vars(kind).values() for kind in reversed(cls.__mro__)), sys.modules[cls.__module__], cls.statements
        )
        if len({statement.id for statement in every}) != len(every):
            raise UsageError(f"experiment {cls.name!r} has repeated claim ids; expected each once")
        return every

    @classmethod
    def at(cls, scale: str, overrides: Mapping[str, Any] | None = None) -> Self:
        """The configuration of a scale, "smoke" or "paper", some fields replaced; unknown names and wrong types are errors."""
        if scale not in SCALES:
            raise UsageError(f"got scale {scale!r}; expected one of {', '.join(SCALES)}")
        config = cls(**cls.smoke) if scale == "smoke" else cls()
        known = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        unknown = [key for key in overrides or {} if key not in known]
        if unknown:
            raise UsageError(f"{cls.name} has no setting {', '.join(unknown)}; its settings: {', '.join(known)}")
        hints = get_type_hints(cls)
        changes = {key: _alike(key, value, known[key], hints[key]) for key, value in (overrides or {}).items()}
        if changes.get("seeds", 1) < 1:
            raise UsageError(f"got seeds={changes['seeds']}; expected at least one network")
        return dataclasses.replace(config, **changes)

    @classmethod
    def of(cls, record: Record) -> Self:
        """The configuration that a record was made with."""
        settings = dict(record.config)
        scale = settings.pop("scale") if settings["scale"] in SCALES else "paper"  # else a setting of that name
        return cls.at(scale, settings)

    @classmethod
    def run(
        cls,
        scale: str = "smoke",
        *,
        out: str | Path,
        device: torch.device | str | None = None,
        root: str | Path | None = None,
        seed: int = 0,
        progress: bool = False,
        gather_from: Iterable[str | Path] = (),
        **overrides: Any,
    ) -> Record:
        """Run it into the folder `out`, or resume what stopped there; see `ntkscope.run`."""
        config = cls.at(scale, overrides)
        where = as_device(device or "auto") or torch.device("cpu")
        shared: dict[str, Any] = {
            "config": {"scale": scale, **config.settings()},
            "seeds": {"seed": seed},
            "device": where,
        }
        if os.path.exists(Path(out) / "record.json"):
            record = Record.resume(out, **shared)
        else:
            record = Record.create(out, kind="experiment", name=cls.name, **shared)
        with record:
            gather(record, gather_from)
            with _trusting(record):
                config.measure(Run(config, record, where, None if root is None else str(root), seed, progress))
                config.conclude(record, scale)
        return record

    @classmethod
    def again(
        cls, folder: str | Path, legs: Sequence[str], *, device: torch.device | str | None = None, **how: Any
    ) -> tuple[list[str], list[str]]:
        """Compute legs of a record once more, elsewhere; see `framework.again`."""
        from ntkscope_papers.framework.again import again

        return again(Record.open(folder), legs, experiment=cls, device=as_device(device or "auto"), **how)

    def conclude(self, record: Record, scale: str) -> None:
        """Set the verdicts and draw the figures from the record."""
        difference = self.difference()
        words = f"{SMALL}: smoke scale, see config" if scale == "smoke" else f"other settings: {difference}"
        claims = list(self.judge(record, words if difference else ""))
        if sorted(claim.id for claim in claims) != sorted(statement.id for statement in self.published()):
            listed, judged = {s.id for s in self.published()}, {claim.id for claim in claims}
            raise UsageError(
                f"{self.name} did not judge what it lists, or not once: {', '.join(sorted(listed ^ judged))}"
            )
        for claim in claims:
            record.claim(claim)
        record.put(figures=save_figures(self.draw, record))

    def settings(self) -> dict[str, Any]:
        """The configuration as a record keeps it."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in self.parts}

    def difference(self) -> str:
        """How this configuration differs from the paper's, in words; empty if it does not."""
        paper = type(self)()
        other = [
            name for name in self.settings() if name not in self.free and getattr(self, name) != getattr(paper, name)
        ]
        return ", ".join(f"{name}={getattr(self, name)!r} instead of {getattr(paper, name)!r}" for name in other)

    def prepare(self, run: Run) -> Any:
        """What all legs share, such as the data; loaded when it is first asked for."""

    def legs_of(self, run: Run) -> list[Leg]:
        """The measurements, in the order they are made: those marked `@leg`."""
        found = []
        for kind in reversed(type(self).__mro__):
            for method in vars(kind).values():
                if hasattr(method, "leg"):
                    key, over, optional = method.leg
                    for case in over(self):
                        several = case if isinstance(case, tuple) else (case,)
                        named = optional(self, *several) if callable(optional) else optional
                        found.append(Leg(key.format(*several), partial(method, self, run, *several), named))
        return found

    def measure(self, run: Run) -> None:
        """Make every chosen measurement that the record lacks."""
        run_legs(run.record, self.legs_of(run), self.legs, progress=run.progress)

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        """The verdict on every statement."""
        for statement in self.published():
            yield statement.verdict(self.name, statement(self, record), difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        """Matplotlib figures by name, from those marked `@figure`."""
        found: dict[str, Any] = {}
        for kind in reversed(type(self).__mro__):
            for name, method in vars(kind).items():
                if hasattr(method, "figure"):
                    drawn = method(self, record)
                    found.update(drawn if isinstance(drawn, Mapping) else {name: drawn})
        return found


@contextmanager
def _trusting(record: Record) -> Iterator[None]:
    """Inside, an error that may come from results which were there before says so: a record may hold anything."""
    before = [key for key, value in record.metrics.items() if isinstance(value, Mapping)]
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if not before or isinstance(error, NtkscopeError):
            raise
        raise RecordError(
            f"{record.folder} cannot be continued ({type(error).__name__}: {error}) with the results it held"
            f" ({', '.join(before[:6])}{', …' if len(before) > 6 else ''}); were they not written by a run of {record.name}?"
            " restore them, or run in another folder"
        ) from error


def _alike(key: str, value: Any, default: Any, hint: Any) -> Any:
    """`value` as the type of `default`: a lone item becomes a tuple, a whole number a float; None if `hint` allows it."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if default is None or value is None:
        if type(value) not in kinds:
            expected = " or ".join(
                "None" if kind is NoneType else getattr(kind, "__name__", str(kind)) for kind in kinds
            )
            raise UsageError(f"got {key}={value!r}, a {type(value).__name__}; expected {expected}")
        return value
    if isinstance(default, tuple):
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise UsageError(
            f"got {key}={value!r}, a {type(value).__name__}; expected a {type(default).__name__} such as {default!r}"
        )
    return value

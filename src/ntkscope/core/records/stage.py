"""A stage of a run: how far it has got, recorded while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, TypeAlias

from ntkscope.core.errors import RecordError, UsageError
from ntkscope.core.progress import progress


@dataclass(frozen=True)
class Stage:
    """How far one stage got: `done` of `total` steps in `seconds`; `finished` when it was left without an error."""

    done: int = 0
    total: int | None = None
    seconds: float = 0.0
    finished: bool = False


Save: TypeAlias = Callable[[str, Stage, bool], None]  # name, stage, whether it must reach the disk now


class OpenStage:
    """One stage while it runs, as a context manager; `Record.stage` returns it."""

    def __init__(
        self, name: str, before: Stage, save: Save, *, total: int | None = None, show: bool | Literal["auto"] = False
    ) -> None:
        if total is not None and before.done > total:
            raise UsageError(
                f"stage {name!r} reached step {before.done} before, but now has a total of {total} steps;"
                " give the total it had, or another name"
            )
        self.name = name
        self._stage = replace(before, total=before.total if total is None else total, finished=False)
        self._save = save
        self._seconds_before = before.seconds
        self._bar: Any = progress(total=self._stage.total, label=name, enabled=show)

    @property
    def done(self) -> int:
        """Steps done, including those of earlier attempts."""
        return self._stage.done

    def __enter__(self) -> OpenStage:
        self._start = time.monotonic()
        self._save(self.name, self._stage, True)
        self._bar.__enter__()
        if self.done:
            self._bar.skip(self.done)
        return self

    def advance(self, n: int = 1) -> None:
        """`n` more steps are done."""
        self._stage = replace(self._stage, done=self._stage.done + n, seconds=self._seconds())
        self._save(self.name, self._stage, False)
        self._bar.advance(n)

    def message(self, text: str) -> None:
        """A few words beside the bar."""
        self._bar.message(text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__()
        self._stage = replace(self._stage, seconds=self._seconds(), finished=error is None)
        try:
            self._save(self.name, self._stage, True)
        except RecordError as also:  # when something failed already, that is the error to see
            if error is None:
                raise
            error.add_note(f"and stage {self.name!r} could not be recorded: {also}")

    def _seconds(self) -> float:
        return round(self._seconds_before + time.monotonic() - self._start, 3)

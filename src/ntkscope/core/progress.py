"""Progress: a bar with the time left on a terminal, one line per minute elsewhere, nothing on request."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, Literal, TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from ntkscope.core.errors import UsageError
from ntkscope.core.machine.interrupts import alarm

T = TypeVar("T")
_ends: ContextVar[float] = ContextVar(
    "_ends", default=math.inf
)  # when the innermost time limit ends, by the clock below
LINE_EVERY = 60.0  # seconds between lines where there is no terminal
REFRESH_EVERY = 0.1  # seconds between redrawings of a bar


class TimeLimit(BaseException):
    """Raised in a step whose time limit has ended; like an interrupt, it is not an error that a step could handle."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop what runs longer than so many seconds: at its next report of progress, and in the main thread as Ctrl-C would.

    An outer limit stays.

    >>> with time_limit(-1.0), counter(3, "tiles", enabled=False) as bar:
    ...     bar.advance()
    Traceback (most recent call last):
    ...
    ntkscope.core.progress.TimeLimit
    """
    token = _ends.set(min(_ends.get(), time.monotonic() + seconds))
    try:
        with alarm(seconds, TimeLimit):
            yield
    finally:
        _ends.reset(token)


def _unlimited() -> float:
    return math.inf


def counter(
    total: int, label: str, enabled: bool | Literal["auto"] = "auto", most_left: Callable[[], float] = _unlimited
) -> Progress[int]:
    """Progress that is advanced by hand: `with counter(10, "tiles") as bar: bar.advance(1)`.

    `most_left()`: seconds after which it ends whatever is left to do.
    """
    return Progress(None, total=total, label=label, enabled=enabled, most_left=most_left)


class Progress(Generic[T]):
    """Show how far a long step has progressed and how much time is left.

    Wrap an iterable, or use it as a context manager and call `.advance(n)`. `True` and `"auto"` both show a bar when
    `stream` (stderr) is a terminal and one line per minute otherwise; `False` shows nothing. It starts no thread.

    Examples:
        >>> sum(progress(range(4), enabled=False))
        6
        >>> with progress(total=2, label="tiles", enabled=False) as bar:
        ...     bar.advance(2)
        >>> bar.done
        2
    """

    def __init__(
        self,
        iterable: Iterable[T] | None = None,
        *,
        total: int | None = None,
        label: str = "",
        enabled: bool | Literal["auto"] = "auto",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        most_left: Callable[[], float] = _unlimited,
    ) -> None:
        if enabled not in (True, False, "auto"):
            raise UsageError(f'got progress={enabled!r}; expected True, False or "auto"')
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self.label, self.total, self.done = label, total, 0
        self._iterable = iterable
        self._view = _view(enabled, stream if stream is not None else sys.stderr, clock)
        self._view.most_left = most_left
        self._open = False

    def __enter__(self) -> Progress[T]:
        self._view.open(self.label, self.total)
        self._open = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self._open = False
            self._view.close(self.done)

    def __iter__(self) -> Iterator[T]:
        if self._iterable is None:
            raise UsageError("this progress wraps no iterable; use it as `with progress(total=...) as bar`")
        if self._open:  # `with progress(items) as bar: for item in bar`
            yield from self._items(self._iterable)
            return
        with self:
            yield from self._items(self._iterable)

    def _items(self, iterable: Iterable[T]) -> Iterator[T]:
        for item in iterable:
            yield item
            self.advance()

    def advance(self, n: int = 1) -> None:
        """`n` more steps are done."""
        self.done += n
        if time.monotonic() > _ends.get():
            raise TimeLimit
        if self._open:
            self._view.show(self.done)

    def skip(self, n: int) -> None:
        """`n` steps were done before this started: they count, but are not used to estimate the remaining time."""
        self.done += n
        if self._open:
            self._view.skip(n)
            self._view.show(self.done)

    def message(self, text: str) -> None:
        """A few words shown beside the count from now on, such as the current loss."""
        if self._open:
            self._view.message(text)


progress = Progress


class _Silent:
    """Shows nothing; also what the other views share."""

    most_left: Callable[[], float]

    def open(self, label: str, total: int | None) -> None: ...

    def show(self, done: int) -> None: ...

    def skip(self, n: int) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self, done: int) -> None: ...


class _Lines(_Silent):
    """One line per minute; a step shorter than a minute prints nothing."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._clock = stream, clock
        self._text = ""
        self._printed = False
        self._before = 0

    def skip(self, n: int) -> None:
        self._before += n

    def open(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self._started = self._last = self._clock()

    def show(self, done: int) -> None:
        if self._clock() - self._last >= LINE_EVERY:
            self._print(done)

    def message(self, text: str) -> None:
        self._text = text

    def close(self, done: int) -> None:
        if self._printed:
            self._print(done, last=True)

    def _print(self, done: int, last: bool = False) -> None:
        now = self._clock()
        self._last, self._printed = now, True
        elapsed = now - self._started
        most = self.most_left()
        text = line(self._label, done, self._total, elapsed, self._text, last=last, before=self._before, most=most)
        print(text, file=self._stream, flush=True)


def line(
    label: str,
    done: int,
    total: int | None,
    elapsed: float | int,
    text: str = "",
    *,
    last: bool = False,
    before: int = 0,
    most: float = math.inf,
) -> str:
    """One line of progress; `before` and `most` as for `left`.

    >>> line("tiles", 30, 120, 60.0)
    'tiles: 30/120 (25 %), 1 min 00 s, about 3 min 00 s left'
    >>> line("tiles", 120, 120, 245.0, last=True)
    'tiles: 120/120 (100 %), 4 min 05 s, ended'
    >>> line("tiles", 100, 120, 60.0, before=90)
    'tiles: 100/120 (83 %), 1 min 00 s, about 2 min 00 s left'
    >>> line("items", 50_000, None, 60.0)
    'items: 50,000 done, 1 min 00 s'
    >>> line("", 7, None, 65.0, "loss 0.1")
    '7 done, 1 min 05 s, loss 0.1'
    """
    count = _count(done, total) + (f" ({100 * done // total} %)" if total else " done")
    parts = [f"{label}: {count}" if label else count, duration(elapsed)]
    if last:
        parts.append("ended")
    elif remaining := left(done, total, elapsed, before, most):
        parts.append(f"about {remaining} left")
    return ", ".join([*parts, text] if text else parts)


def _count(done: int, total: int | None) -> str:
    return f"{done:,}/{total:,}" if total else f"{done:,}"


def left(done: int, total: int | None, elapsed: float | int, before: int = 0, most: float = math.inf) -> str:
    """The time left, `most` seconds at most, if the rest is as fast as the steps after `before`; "" where nothing says so.

    >>> left(30, 120, 60.0), left(30, 120, 60.0, most=100.0), left(0, 120, 60.0)
    ('3 min 00 s', '1 min 40 s', '')
    """
    if not total or not before < done < total:
        return ""
    return duration(max(0.0, min(most, elapsed / (done - before) * (total - done))))


def duration(seconds: float | int) -> str:
    """Seconds in human-readable form.

    >>> duration(0.25), duration(42), duration(125), duration(7500)
    ('0.25 s', '42 s', '2 min 05 s', '2 h 05 min')
    """
    if seconds < 10:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Bar(_Silent):
    """One bar of a terminal's display; bars that are open at the same time are stacked."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._clock = stream, clock

    def open(self, label: str, total: int | None) -> None:
        self._display = _Display.enter(self._stream, self._clock)
        self._task = self._display.bars.add_task(label, total=total, count=_count(0, total), text="", left="")
        self._total, self._before, self._started = total, 0, self._clock()
        self._display.draw()

    def skip(self, n: int) -> None:
        self._before += n

    def show(self, done: int) -> None:
        remaining = left(done, self._total, self._clock() - self._started, self._before, self.most_left())
        self._update(done, remaining and f"{remaining} left")
        self._display.draw()

    def message(self, text: str) -> None:
        self._display.bars.update(self._task, text=text)
        self._display.draw()

    def close(self, done: int) -> None:
        self._update(done, "")
        self._display.leave(self._task)

    def _update(self, done: int, left: str) -> None:
        self._display.bars.update(self._task, completed=done, count=_count(done, self._total), left=left)


class _Display:
    """The live part of one terminal, shared by all bars on it: a terminal has one last line, so this is not ambient
    state of ours but of the terminal. It is redrawn when a bar advances, never by a thread."""

    _shown: dict[int, _Display] = {}  # noqa: RUF012 - by id of the stream, while a bar is open on it
    _lock = threading.RLock()

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._key, self._clock, self._users = id(stream), clock, 0
        self._drawn = float("-inf")
        to_terminal = sys.stdout.isatty()  # printed text moves above the bar, but never out of a file it was sent to
        self.bars = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.fields[text]}", markup=False),
            console=Console(file=stream, force_terminal=True),
            auto_refresh=False,
            redirect_stdout=to_terminal,
            redirect_stderr=to_terminal,
            get_time=clock,
        )

    @classmethod
    def enter(cls, stream: TextIO, clock: Callable[[], float]) -> _Display:
        with cls._lock:
            display = cls._shown.get(id(stream))
            if display is None:
                display = cls._shown[id(stream)] = cls(stream, clock)
                display.bars.start()
            display._users += 1
            return display

    def leave(self, task: TaskID) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                self.bars.remove_task(task)  # an inner bar goes; the outermost stays to be read
                self.bars.refresh()
            else:
                del self._shown[self._key]
                self.bars.refresh()
                self.bars.stop()

    def draw(self) -> None:
        now = self._clock()
        if now - self._drawn >= REFRESH_EVERY:
            self._drawn = now
            self.bars.refresh()


def _view(enabled: bool | str, stream: TextIO, clock: Callable[[], float]) -> _Silent:
    if enabled is False:
        return _Silent()
    stream = getattr(stream, "rich_proxied_file", stream)  # an open bar stands in for stderr; the terminal is behind it
    if stream.isatty() and os.environ.get("TERM", "") not in ("dumb", ""):
        return _Bar(stream, clock)
    return _Lines(stream, clock)

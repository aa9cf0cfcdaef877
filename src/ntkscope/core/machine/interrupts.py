"""Interrupts that are not lost: a Ctrl-C that arrives while Python finalises an object is raised where nobody sees it."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(SystemExit):
    """SIGTERM, as an exception: open files are closed, records say *interrupted*, and the exit status is 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "SIGTERM"


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM (a scheduler's time limit, `kill`) raises `Terminated` where the main thread is, so that a record ends
    as *interrupted*; a second one ends the process at once. Handlers that someone else installed are left in place."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not ours:
        yield
        return

    def handler(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Alarm:
    """The handler of SIGALRM: raises the error of the alarm that is set."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __call__(self, number: int, frame: Any) -> None:
        raise self.error


@contextmanager
def alarm(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Inside, `error` is raised after so many seconds where the main thread is then; an alarm around this one stays.

    Nothing happens in other threads, on systems without SIGALRM, and where somebody else uses that signal. One call into
    compiled code is not interrupted: the error is raised when it returns.

    >>> with alarm(0.01, TimeoutError):
    ...     time.sleep(60)
    Traceback (most recent call last):
    ...
    TimeoutError
    """
    main = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM")
    before = signal.getsignal(signal.SIGALRM) if main else None
    if not (main and math.isfinite(seconds) and (before == signal.SIG_DFL or isinstance(before, _Alarm))):
        yield
        return
    outer, began = signal.getitimer(signal.ITIMER_REAL)[0], time.monotonic()  # 0: none
    mine = max(seconds, 1e-6)
    signal.signal(signal.SIGALRM, _Alarm(error))
    signal.setitimer(signal.ITIMER_REAL, min(mine, outer) if outer else mine)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - began), 1e-6))


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], None]]:
    """Inside, an interrupt is raised as usual, and again by the function yielded if the first was swallowed.

    Python ignores what is raised in `__del__` and in callbacks of weak references, and a signal's handler may run there.
    Loops that drop objects with such methods, as Dask's futures are, call the function once per iteration.

    >>> with noted_interrupts() as check:
    ...     check()
    """
    raised: list[BaseException] = []
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}

    def check() -> None:
        if raised:
            raise raised[0]

    def noting(earlier: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
        def handler(number: int, frame: Any) -> None:
            try:
                earlier(number, frame)
            except BaseException as error:
                raised.append(error)
                raise

        return handler

    ours = {number: earlier for number, earlier in before.items() if callable(earlier)}  # others are left to the system
    handlers = {number: noting(earlier) for number, earlier in ours.items()}
    for number, handler in handlers.items():
        signal.signal(number, handler)
    try:
        yield check
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) == handler:  # one that a signal has put back stays
                signal.signal(number, ours[number])

"""Interrupts that are not lost: a Ctrl-C that comes while Python drops an object raises where nobody can see it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], None]]:
    """Inside, an interrupt is raised as always, and again by the function given, should the first have been swallowed.

    Python ignores what is raised in `__del__` and in callbacks of weak references, and a signal's handler may run there.
    Loops that drop objects with such methods, as Dask's futures are, call the function once a turn.

    >>> with noted_interrupts() as check:
    ...     check()
    """
    raised: list[BaseException] = []
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None

    def check() -> None:
        if raised:
            raise raised[0]

    if not callable(before):  # another thread, or interrupts are left to the system
        yield check
        return
    earlier: Callable[[int, Any], Any] = before

    def handler(number: int, frame: Any) -> None:
        try:
            earlier(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    signal.signal(signal.SIGINT, handler)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)

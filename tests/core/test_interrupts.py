"""An interrupt that Python swallows is raised after all; one that it does not comes at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ntkscope.core.interrupts import noted_interrupts


class Dropped:
    """Interrupts this process when it is dropped."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # the handler runs between two steps of the interpreter
            pass


def swallowed() -> None:
    with noted_interrupts() as check:
        check()
        thing = Dropped()
        del thing
        check()


def plain() -> None:
    with noted_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        raise AssertionError("it did not come")


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Whatever started the tests may have left interrupts to others."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_is_swallowed_is_raised_at_the_next_turn() -> None:
    with pytest.raises(KeyboardInterrupt):
        swallowed()


def test_one_that_is_not_comes_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        plain()


def test_the_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with noted_interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_nothing_is_touched() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with noted_interrupts() as check:
            check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]

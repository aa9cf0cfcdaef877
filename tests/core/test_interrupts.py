"""An interrupt that Python swallows is raised after all; one that it does not comes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntkscope.core import Record
from ntkscope.core.machine.interrupts import Terminated, noted_interrupts, terminable


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


TERMINATED = """
    import sys, time
    from ntkscope.cli import app, main
    from ntkscope.core import Record

    @app.command("wait")
    def wait(folder: str) -> None:
        with Record.create(folder, kind="test") as record, record.stage("tiles") as stage:
            stage.advance()
            print("begun", flush=True)
            time.sleep(60)

    main(["wait", sys.argv[1]])
"""


def test_sigterm_ends_a_command_as_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(TERMINATED), str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in said
    record = Record.open(tmp_path / "run")
    assert (record.status, record.error) == ("interrupted", "Terminated: SIGTERM")
    assert record.stages["tiles"].done == 1


def test_handlers_of_others_stay() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):
                pass
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_is_an_exception_inside() -> None:
    def stopped() -> None:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):
                pass
            raise AssertionError("it did not come")

    with pytest.raises(Terminated):
        stopped()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

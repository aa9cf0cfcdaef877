"""Progress: lines without a terminal, bars with one, silence on request."""

from __future__ import annotations

import io
import threading

import pytest

from ntkscope.core import UsageError, progress


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_a_short_step_leaves_no_line() -> None:
    clock, out = Clock(), io.StringIO()
    for _ in progress(range(59), stream=out, clock=clock):
        clock.now += 1
    assert out.getvalue() == ""


def test_one_line_a_minute_and_a_last_one() -> None:
    clock, out = Clock(), io.StringIO()
    for _ in progress(range(150), label="tiles", stream=out, clock=clock):
        clock.now += 1
    assert out.getvalue().splitlines() == [
        "tiles: 60/150 (40 %), 1 min 00 s, about 1 min 30 s left",
        "tiles: 120/150 (80 %), 2 min 00 s, about 30 s left",
        "tiles: 150/150 (100 %), 2 min 30 s, ended",
    ]


def test_steps_done_before_say_nothing_about_the_time_left() -> None:
    clock, out = Clock(), io.StringIO()
    with progress(total=150, label="tiles", stream=out, clock=clock) as bar:  # type: ignore[var-annotated]
        bar.skip(100)
        clock.now = 60
        bar.advance(10)
    assert bar.done == 110
    assert out.getvalue().splitlines()[0] == "tiles: 110/150 (73 %), 1 min 00 s, about 4 min 00 s left"


def test_context_manager_counts_and_carries_a_message() -> None:
    clock, out = Clock(), io.StringIO()
    with progress(label="epochs", stream=out, clock=clock) as bar:  # type: ignore[var-annotated]
        bar.message("loss 0.5")
        clock.now = 61
        bar.advance(3)
    assert bar.done == 3
    assert out.getvalue().splitlines()[0] == "epochs: 3 done, 1 min 01 s, loss 0.5"


def test_silent_on_request_even_on_a_terminal() -> None:
    out = Terminal()
    assert list(progress(iter([1, 2]), enabled=False, stream=out)) == [1, 2]
    assert out.getvalue() == ""


def test_a_bar_on_a_terminal_shows_label_count_and_time_left() -> None:
    clock, out = Clock(), Terminal()
    for _ in progress(range(10), label="kernel [train]", stream=out, clock=clock):
        clock.now += 1
    text = out.getvalue()
    assert "kernel [train]" in text  # not taken for markup
    assert " 5/10" in text
    assert "10/10" in text
    assert "5 s left" in text


def test_no_more_time_is_left_than_there_is() -> None:
    """On a terminal and off it."""
    for out in (Terminal(), io.StringIO()):
        clock = Clock()
        with progress(total=100, stream=out, clock=clock, most_left=lambda: 40.0) as bar:  # type: ignore[var-annotated]
            clock.now = 60
            bar.advance(10)
        assert "40 s left" in out.getvalue()
        assert "9 min" not in out.getvalue()


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    clock, out = Clock(), Terminal()
    with progress(total=2, stream=out, clock=clock) as bar:  # type: ignore[var-annotated]
        clock.now = 60
        bar.advance()
    assert out.getvalue().splitlines() == [
        "1/2 (50 %), 1 min 00 s, about 1 min 00 s left",
        "1/2 (50 %), 1 min 00 s, ended",
    ]


def test_nested_bars_share_the_terminal_and_start_no_thread() -> None:
    before = threading.active_count()
    clock, out = Clock(), Terminal()
    for _ in progress(range(3), label="outer", stream=out, clock=clock):
        for _ in progress(range(2), label="inner", stream=out, clock=clock):
            clock.now += 1
            assert threading.active_count() == before
    shown = out.getvalue()
    assert "outer" in shown
    assert "inner" in shown
    last = shown.rstrip().splitlines()[-2]  # the very last only shows the cursor again
    assert "outer" in last
    assert "inner" not in last


def test_a_loop_left_by_break_or_error_gives_the_terminal_back() -> None:
    out = Terminal()
    for _ in progress(range(3), label="first", stream=out):
        break
    with pytest.raises(ZeroDivisionError):
        [1 // item for item in progress(range(3), label="second", stream=out)]
    ended = out.getvalue()
    assert ended.count("\x1b[?25h") == 2  # the cursor is shown again, once each
    with progress(total=1, label="third", stream=out):
        pass
    assert "third" in out.getvalue()


def test_wrapping_and_opening_at_once() -> None:
    out = Terminal()
    with progress(range(3), stream=out) as bar:
        assert list(bar) == [0, 1, 2]
        bar.message("x")
    assert bar.done == 3


def test_wrong_use_is_refused() -> None:
    with pytest.raises(UsageError, match="wraps no iterable"):
        list(progress(total=3, enabled=False))

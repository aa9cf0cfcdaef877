"""Series: appended in O(1), whole after a kill, checked when they are read."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from contracts.full_disk import full_beyond
from ntkscope.core import Record, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.report import write_page


def test_rows_come_back_as_rows_and_columns(tmp_path: Path) -> None:
    with Record.create(tmp_path, kind="test") as record:
        loss = record.series("loss")
        loss.append({"step": 0, "loss": float("nan"), "note": "é"})
        loss.append({"step": np.int64(1), "loss": np.float32(0.5)})
        loss.append({"step": 2, "loss": math.inf, "sizes": [1, 2]})
        assert record.series("loss") is loss
        assert record.series_names == ("loss",)
    again = Record.open(tmp_path).series("loss")
    assert len(again) == 3
    columns = again.columns()
    assert columns["step"] == [0, 1, 2]
    assert math.isnan(columns["loss"][0])
    assert columns["loss"][1:] == [0.5, math.inf]
    assert columns["note"] == ["é", None, None]
    assert columns["sizes"] == [None, None, [1, 2]]
    assert again[-1]["step"] == 2
    assert [row["step"] for row in again] == [0, 1, 2]
    with pytest.raises(IndexError, match="has 3 rows"):
        again[3]
    for line in (tmp_path / "loss.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda token: pytest.fail(token))


MANY = """
    import sys, time
    from ntkscope.core import Record
    with Record.create(sys.argv[1], kind="test") as record:
        start = time.process_time()
        for step in range(100_000):
            record.series("loss").append({"step": step, "loss": 1 / (1 + step)})
        print(time.process_time() - start)
"""


@pytest.mark.guard
def test_a_hundred_thousand_rows_take_seconds(tmp_path: Path) -> None:
    """In a process of its own: here every call is checked for its types."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(MANY), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 10  # 1.5 s; as many puts would write gigabytes
    assert len(Record.open(tmp_path).series("loss")) == 100_000
    assert (tmp_path / "record.json").stat().st_size < 10_000


def test_a_resumed_series_continues(tmp_path: Path) -> None:
    with Record.create(tmp_path, kind="test") as record:
        for step in range(5):
            record.series("loss").append({"step": step})
    with Record.resume(tmp_path) as again:
        assert len(again.series("loss")) == 5
        again.series("loss").rewind(3)
        again.series("loss").append({"step": 30})
        assert again.series("loss").columns() == {"step": [0, 1, 2, 30]}
        with pytest.raises(UsageError, match="has 4 rows; cannot rewind"):
            again.series("loss").rewind(9)
    assert Record.open(tmp_path).series("loss").columns() == {"step": [0, 1, 2, 30]}


@pytest.mark.parametrize("killed", ["before the cut", "after the cut", "after an append"])
def test_a_kill_while_rewinding_leaves_a_record_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """The record knows about five rows; it is rewound to two and killed: it never says more than the file has."""
    record = Record.create(tmp_path, kind="test")
    for step in range(5):
        record.series("loss").append({"step": step})
    record.put(x=1)
    if killed == "before the cut":
        with monkeypatch.context() as patched:
            patched.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                record.series("loss").rewind(2)
    else:
        record.series("loss").rewind(2)
    if killed == "after an append":
        record.series("loss").append({"step": 7})
    expected = {"before the cut": [0, 1, 2, 3, 4], "after the cut": [0, 1], "after an append": [0, 1, 7]}[killed]
    assert Record.open(tmp_path).series("loss").columns()["step"] == expected
    resumed = Record.resume(tmp_path)
    assert resumed.dropped == ()
    resumed.series("loss").rewind(2)
    assert resumed.series("loss").columns()["step"] == [0, 1]


def test_what_cannot_be_a_row_is_refused(tmp_path: Path) -> None:
    record = Record.create(tmp_path, kind="test")
    series = record.series("loss")
    for row in ({}, {"a": object()}, {"a": np.zeros(3)}, {"a": "x" * (2 << 20)}):
        with pytest.raises(UsageError):
            series.append(row)
    assert len(series) == 0
    with pytest.raises(UsageError, match="series name"):
        record.series("../loss")
    reading = Record.open(tmp_path)
    with pytest.raises(RecordError, match="opened for reading"):
        reading.series("loss").append({"a": 1})
    with pytest.raises(RecordError, match="opened for reading"):
        reading.series("loss").rewind(0)
    with pytest.raises(RecordError, match="holds no series 'los'; it holds: loss"):
        reading.series("los")


def test_somebody_elses_file_stays(tmp_path: Path) -> None:
    (tmp_path / "loss.jsonl").write_text("mine")
    with Record.create(tmp_path, kind="test") as record:
        record.series("loss").append({"a": 1})
    assert (tmp_path / "loss.jsonl").read_text() == "mine"
    assert Record.open(tmp_path).to_json()["series"]["loss"]["file"] == "loss.1.jsonl"


@pytest.mark.parametrize(
    "tail", [b"{", b'{"step": 3', b'{"step": 3}', b"\0\0\0", b'{"a"}\n', b"\n", b'{"step": 3}\n{"st']
)
def test_a_torn_tail_is_dropped(tmp_path: Path, tail: bytes) -> None:
    record = Record.create(tmp_path, kind="test")
    for step in range(3):
        record.series("loss").append({"step": step})
    with open(tmp_path / "loss.jsonl", "ab") as handle:  # the process died here, the record is still `running`
        handle.write(tail)
    whole = [0, 1, 2, 3] if tail.startswith(b'{"step": 3}\n') else [0, 1, 2]
    assert Record.open(tmp_path).series("loss").columns() == {"step": whole}
    with Record.resume(tmp_path) as again:
        again.series("loss").append({"step": 9})
    assert Record.open(tmp_path).series("loss").columns() == {"step": [*whole, 9]}


def test_a_changed_series_is_noticed(tmp_path: Path) -> None:
    with Record.create(tmp_path, kind="test") as record:
        for step in range(3):
            record.series("loss").append({"step": step})
    path = tmp_path / "loss.jsonl"
    good = path.read_bytes()
    for bad in (good.replace(b"2", b"7"), good[:-1], good + b'{"step":3}\n', good[: len(good) // 2], b""):
        path.write_bytes(bad)
        with pytest.raises(RecordError, match="changed or cut short"):
            Record.open(tmp_path).series("loss")
    path.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="loss"):
        assert Record.resume(tmp_path).dropped == ("loss",)


KILLED = """
    import sys
    from ntkscope.core import Record
    with Record.create(sys.argv[1], kind="test") as record:
        step = 0
        while True:
            record.series("loss").append({"step": step, "text": "x" * (step % 500)})
            if step % 500 == 0:
                record.put(step=step)
                print(step, flush=True)
            step += 1
"""


def test_a_kill_loses_no_row_that_was_appended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = 0
        for line in process.stdout:
            last = int(line)
            if last >= 5_000:
                break
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    steps = Record.open(tmp_path / "run").series("loss").columns()["step"]
    assert len(steps) >= last
    assert steps == list(range(len(steps)))
    with Record.resume(tmp_path / "run") as again:
        again.series("loss").append({"step": len(steps)})
    assert Record.open(tmp_path / "run").series("loss").columns()["step"] == list(range(len(steps) + 1))


def test_a_full_disk_leaves_whole_rows(tmp_path: Path) -> None:
    Record.create(tmp_path, kind="test")
    series, rows = Record.resume(tmp_path).series("loss"), 0
    with full_beyond(4096), pytest.raises(RecordError, match="earlier rows are unchanged"):  # noqa: PT012 - the last of them
        while True:
            series.append({"text": "x" * 300})
            rows += 1
    assert len(series) == rows > 0
    assert len(Record.open(tmp_path).series("loss")) == rows


def test_the_page_shows_series(tmp_path: Path) -> None:
    with Record.create(tmp_path, kind="test") as record:
        for step in range(300):
            record.series("training").append({"step": step, "loss": 1 / (1 + step), "note": "<b>"})
        record.series("empty")
        record.series("one").append({"a": math.nan, "b": 1e300})
        record.series("one").append({"a": None, "b": -1e300})
    page = write_page(tmp_path).read_text()
    for words in ("training", "300 rows", "loss by step", "No rows yet", "&lt;b&gt;"):
        assert words in page
    assert "<b>" not in page.replace("<b>How", "")
    assert "training" in str(Record.open(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_no_series(tmp_path: Path) -> None:
    with Record.create(tmp_path, kind="test") as record:
        record.series("loss").append({"a": 1})
    (tmp_path / "loss.jsonl").unlink()
    os.mkfifo(tmp_path / "loss.jsonl")
    with pytest.raises(RecordError, match="is a pipe"):
        Record.open(tmp_path).series("loss")

"""The record: what it keeps, what it refuses, and that it survives a full disk and a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.full_disk import full_beyond
from ntkscope.core import Claim, Record, UsageError
from ntkscope.core.errors import RecordError
from ntkscope.core.records import record as record_module

CLAIM = Claim("a-b", "Table 1", 0.741, 0.744, 0.01, "reproduced")


def create(folder: Path, **config: object) -> Record:
    return Record.create(folder, kind="test", name="one", config=config, seeds={"data": 0})


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_everything_comes_back(tmp_path: Path) -> None:
    with create(tmp_path / "run", lr=0.1, widths=(3, 4)) as record:
        record.put(accuracy=torch.tensor(0.5), loss=float("nan"), best=np.float64(1.5), table={"a": [1, float("-inf")]})
        record.array("kernel", torch.eye(3, dtype=torch.float64))
        record.array("empty", np.zeros((0, 3), dtype=np.float32))
        record.claim(CLAIM)
        with record.stage("tiles", total=2) as stage:
            stage.advance(2)
    again = Record.open(tmp_path / "run")
    assert again.status == "done"
    assert again.config == {"lr": 0.1, "widths": [3, 4]}
    assert again.seeds == {"data": 0}
    assert again.metrics["accuracy"] == 0.5
    assert np.isnan(again.metrics["loss"])
    assert again.metrics["table"] == {"a": [1, -np.inf]}
    assert again.claims == (CLAIM,)
    assert (again.stages["tiles"].done, again.stages["tiles"].finished) == (2, True)
    np.testing.assert_array_equal(again.arrays["kernel"], np.eye(3))
    assert isinstance(again.arrays["kernel"], np.memmap)
    assert again.arrays["empty"].shape == (0, 3)
    assert again.wall_seconds >= 0
    assert again.environment["packages"]["torch"] == torch.__version__
    assert leftovers(tmp_path / "run") == []


def test_the_file_is_strict_json(tmp_path: Path) -> None:
    create(tmp_path).put(loss=float("nan"), bound=float("inf"))

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    document = json.loads((tmp_path / "record.json").read_text(), parse_constant=refuse)
    assert document["metrics"] == {"loss": "NaN", "bound": "Infinity"}
    assert document["schema_version"] == 1


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no such luck"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_an_escaping_exception_is_told(tmp_path: Path, error: BaseException, status: str) -> None:
    def fail() -> None:
        with create(tmp_path) as record, record.stage("tiles", total=3) as stage:
            stage.advance()
            raise error

    with pytest.raises(type(error)):
        fail()
    again = Record.open(tmp_path)
    assert again.status == status
    assert type(error).__name__ in str(again.error)
    assert again.stages["tiles"].done == 1
    assert not again.stages["tiles"].finished
    assert "no such luck" in str(again) or status == "interrupted"


def test_resume_goes_on_where_it_stopped(tmp_path: Path) -> None:
    done: list[int] = []

    def work(record: Record, stop: int) -> None:
        with record, record.stage("tiles", total=5) as stage:
            for i in range(stage.done, 5):
                if i == stop:
                    raise RuntimeError("stopped")
                done.append(i)
                stage.advance()

    with pytest.raises(RuntimeError):
        work(create(tmp_path, n=5), stop=2)
    work(Record.resume(tmp_path, config={"n": 5}), stop=-1)
    assert done == [0, 1, 2, 3, 4]
    document = Record.open(tmp_path).to_json()
    assert document["status"] == "done"
    assert document["error"] is None
    assert document["earlier"][0]["status"] == "failed"
    assert document["wall_seconds"] >= document["earlier"][0]["wall_seconds"]


def test_resume_names_what_differs(tmp_path: Path) -> None:
    create(tmp_path, lr=0.1, model={"name": "mlp", "depth": 2}).finish()
    with pytest.raises(RecordError, match=r"lr: 0\.1 -> 0\.2; model\.depth: 2 -> 3"):
        Record.resume(tmp_path, config={"lr": 0.2, "model": {"name": "mlp", "depth": 3}})
    with pytest.raises(RecordError, match="another seeds"):
        Record.resume(tmp_path, seeds={"data": 1})
    Record.resume(tmp_path, config={"lr": 0.1, "model": {"name": "mlp", "depth": 2}})


def test_create_never_replaces_a_record(tmp_path: Path) -> None:
    create(tmp_path, a=1)
    with pytest.raises(RecordError, match=r"already holds a record.*resume"):
        create(tmp_path)
    assert Record.open(tmp_path).config == {"a": 1}


def test_an_opened_record_is_for_reading(tmp_path: Path) -> None:
    create(tmp_path)
    with pytest.raises(RecordError, match="opened for reading"):
        Record.open(tmp_path).put(a=1)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is not a record"),
        ('{"schema_version": 1, "kind"', "is not a record"),
        ("[]", "is not a record"),
        ('{"schema_version": 1}', "missing kind"),
        ('{"schema_version": 99}', "install a newer ntkscope"),
        (None, "give the folder a run wrote to"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str | None, match: str) -> None:
    if text is not None:
        (tmp_path / "record.json").write_text(text)
    with pytest.raises(RecordError, match=match):
        Record.open(tmp_path)


def test_values_that_cannot_be_kept_are_refused_with_the_remedy(tmp_path: Path) -> None:
    record = create(tmp_path)
    with pytest.raises(UsageError, match=r"record\.array"):
        record.put(kernel=torch.eye(2))
    with pytest.raises(UsageError, match=r"metrics\['a'\]\[1\] is a object"):
        record.put(a=[1, object()])
    with pytest.raises(UsageError, match="Python objects"):
        record.array("a", np.array([object()]))
    with pytest.raises(UsageError, match="bfloat16"):
        record.array("a", torch.zeros(1, dtype=torch.bfloat16))
    with pytest.raises(UsageError, match="array name"):
        record.array("../a", np.zeros(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record.json"]


def test_a_changed_array_is_noticed(tmp_path: Path) -> None:
    create(tmp_path).array("kernel", np.arange(4.0))
    path = tmp_path / "kernel.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(RecordError, match="changed or cut short"):
        Record.open(tmp_path).arrays["kernel"]
    path.unlink()
    with pytest.raises(RecordError, match="cannot read array 'kernel'"):
        Record.open(tmp_path).arrays["kernel"]
    with pytest.raises(RecordError, match="holds no array 'kernal'; it holds: kernel"):
        Record.open(tmp_path).arrays["kernal"]


def test_a_record_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.npy").write_bytes(b"secret")
    create(tmp_path / "run").array("a", np.zeros(1))
    path = tmp_path / "run" / "record.json"
    path.write_text(path.read_text().replace('"a.npy"', '"../secret.npy"'))
    with pytest.raises(RecordError, match="expected a plain file name"):
        Record.open(tmp_path / "run").arrays["a"]


def test_an_array_is_replaced_whole(tmp_path: Path) -> None:
    record = create(tmp_path)
    for value in range(4):
        record.array("a", np.full(3, value))
        assert Record.open(tmp_path).arrays["a"].tolist() == [value] * 3
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_html_is_escaped(tmp_path: Path) -> None:
    record = Record.create(tmp_path, kind="<script>", name="n", config={"<b>": "<img>"})
    record.put(**{"x": "<i>"})
    html = record._repr_html_()
    for tag in ("<script>", "<b>", "<img>", "<i>"):
        assert tag not in html
    assert "&lt;script&gt;" in html


def test_the_summary_reads(tmp_path: Path) -> None:
    record = create(tmp_path, lr=0.1)
    record.put(accuracy=0.98765432)
    record.claim(CLAIM)
    record.array("kernel", np.eye(3))
    text = str(record)
    for words in ("test: one", "running (last heard of", "0.987654", "a-b", "reproduced", "float64 3 × 3"):
        assert words in text
    assert repr(record) == f"Record({str(tmp_path)!r}, kind='test', name='one', status='running')"


def test_advance_writes_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = create(tmp_path)
    with record.stage("tiles", total=1000) as stage:
        before = os.stat(tmp_path / "record.json").st_ino
        for _ in range(999):
            stage.advance()
        assert os.stat(tmp_path / "record.json").st_ino == before  # no write within seconds
        monkeypatch.setattr(record_module, "WRITE_EVERY", 0.0)
        stage.advance()
        assert Record.open(tmp_path).stages["tiles"].done == 1000


# -- a full disk: real errors of the operating system, not mocked ones --------------------------------------------


def test_a_write_that_fails_leaves_the_old_record(tmp_path: Path) -> None:
    create(tmp_path).put(before=1)
    record = Record.resume(tmp_path)
    record.array("kernel", np.arange(10.0))
    with full_beyond(4096):
        for attempt in (
            lambda: record.put(text="x" * 100_000),
            lambda: record.array("kernel", np.zeros(100_000)),
            lambda: record.array("other", np.zeros(100_000)),
        ):
            with pytest.raises(RecordError, match="is unchanged: make room"):
                attempt()
        assert record.metrics == {"before": 1}
        record.put(after=2)
    record = Record.open(tmp_path)
    assert record.metrics == {"before": 1, "after": 2}
    np.testing.assert_array_equal(record.arrays["kernel"], np.arange(10.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel.npy", "record.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a tiny file system")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        record = create(disk / "run")
        record.put(before=1)
        with pytest.raises(RecordError, match="No space left on device"):
            record.array("kernel", np.zeros(100_000))
        with pytest.raises(RecordError, match="No space left on device"):
            record.put(text="x" * 100_000)
        del record  # and with it the lock on its folder
        with pytest.raises(RecordError, match="No space left"), Record.resume(disk / "run") as again:
            again.put(text="x" * 100_000)
        assert Record.open(disk / "run").metrics == {"before": 1}
        assert Record.open(disk / "run").status == "failed"
        assert [path.name for path in (disk / "run").iterdir()] == ["record.json"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


KILLED = """
    import sys, time
    import numpy as np
    from ntkscope.core.records import record as module
    from ntkscope.core import Record
    module.WRITE_EVERY = 0.0
    with Record.create(sys.argv[1], kind="test", config={"n": 3}) as record:
        with record.stage("tiles", total=10**9) as stage:
            while True:
                record.array("kernel", np.full(1000, float(stage.done)))
                stage.advance()
                print(stage.done, flush=True)
"""


def test_a_killed_run_leaves_a_readable_record(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 20:
                break
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    record = Record.open(folder)
    assert record.status == "running"
    assert record.stages["tiles"].done >= 20
    assert abs(record.arrays["kernel"][0] - record.stages["tiles"].done) <= 1
    assert "not finished" in str(record)
    (folder / f".record.json.{process.pid}-0123abcd.part").write_bytes(
        b"half"
    )  # what a kill in the middle of a write leaves
    with Record.resume(folder, config={"n": 3}) as again:
        assert again.stages["tiles"].done >= 20
    assert leftovers(folder) == []
    assert Record.open(folder).to_json()["earlier"][0]["status"] == "running"


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(RecordError, match=r"mine\.py is a file; expected a folder, such as .*mine-record"):
        create(tmp_path / "mine.py")


def test_time_counts_from_where_it_is_told(tmp_path: Path) -> None:
    began = time.perf_counter() - 100.0
    with create(tmp_path) as record:
        record.count_from(began)
        record.put(x=1)
        assert 100.0 <= record.wall_seconds <= time.perf_counter() - began + 1e-3  # which is how it is rounded
    with Record.resume(tmp_path) as record:  # the second attempt adds its own
        record.count_from(time.perf_counter() - 50.0)
    assert 150.0 <= Record.open(tmp_path).wall_seconds < 200.0

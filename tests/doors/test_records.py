"""Bad records: each is refused with a clear error by every way in, and nothing outside its folder is touched."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doors.bounds import GONE, NODES, bounded, ends, exits_2, put, refused, state
from ntkscope.core import Claim, Record
from ntkscope.core.files.safe_files import LARGEST_JSON

CLAIM = Claim("a-b", "Table 1", 0.7, 0.7, 0.01, "reproduced")
HEX = "0" * 64


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record") / "run"
    with Record.create(folder, kind="test", name="one", config={"n": 3}, seeds={"data": 0}) as record:
        record.array("a", np.arange(6.0).reshape(2, 3))
        record.claim(CLAIM)
        record.put(x=1, table=[{"a": 1}])
        with record.stage("tiles", total=2) as stage:
            stage.advance(2)
        record.series("loss").append({"step": 0, "loss": 0.5})
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of a good record, beside files that are nobody's but the user's."""
    shutil.copytree(whole, tmp_path / "deep" / "run")
    for name in ("thesis.tex", "deep/thesis.npy", "deep/run/notes.txt", "deep/run/notes.npy"):
        (tmp_path / name).write_text("years of work")
    return tmp_path / "deep" / "run"


def document(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "record.json").read_text())
    return found


def write(run: Path, value: Any) -> None:
    (run / "record.json").write_text(json.dumps(value))


def all_refuse(run: Path) -> None:
    """Every way in refuses; what is not the record's stays."""
    home = run.parents[1]
    before = state(home)
    refused(lambda: Record.open(run))
    refused(lambda: Record.resume(run))
    for verb in ("show", "check", "report"):
        exits_2(verb, str(run))
    assert state(home) == before


TEXT: tuple[Any, ...] = (GONE, None, 3, [], {}, True)
MAPPING: tuple[Any, ...] = (GONE, None, 3, [], "x", True)
LIST: tuple[Any, ...] = (None, 3, {}, "x")
SECONDS: tuple[Any, ...] = (GONE, None, "1", [], {}, True, -1, 10**400, 1e300)
COUNT: tuple[Any, ...] = (GONE, "1", [], {}, True, -1, 0.5, 1 << 60, 10**400)
DATE = (GONE, None, 3, "", "yesterday", "2025-01-31", "2025-01-31T12:00:00")
FILE: tuple[Any, ...] = (
    GONE, None, 3, [], "", ".", "..", "/etc/passwd", "../../thesis.tex", "../thesis.npy", "notes.txt", "notes.npy",
    "record.json", "a.npy/../../thesis.npy", "sub/a.npy", "a.npy\x00", ".a.npy", "a" * 300 + ".npy", "a.0.npy", "A.npy ",
    "..\\thesis.npy", "~/a.npy", "a.npy\n",
)  # fmt: skip
TABLE: dict[str, tuple[Any, ...]] = {
    "schema_version": (GONE, None, 0, -1, 2, 99, "1", True, 1.0, [], 10**400),
    "kind": TEXT,
    "name": TEXT,
    "command": TEXT,
    "started": DATE,
    "updated": DATE,
    "wall_seconds": SECONDS,
    "status": (*TEXT, "", "finished", "RUNNING", ["done"]),
    "error": (3, [], {}, True),
    "config": MAPPING,
    "seeds": MAPPING,
    "environment": MAPPING,
    "environment/packages": (3, "x", [], True),
    "metrics": MAPPING,
    "stages": MAPPING,
    "stages/tiles": (
        None,
        3,
        [],
        {},
        {"done": 1},
        {"done": 1, "total": 2, "seconds": 1.0, "finished": True, "more": 1},
    ),
    "stages/tiles/done": (None, *COUNT),
    "stages/tiles/total": COUNT,
    "stages/tiles/seconds": SECONDS,
    "stages/tiles/finished": (GONE, None, 0, "yes", []),
    "claims": (GONE, *LIST, [3], [None], [{}], ["a"]),
    "claims/0/id": (GONE, None, 3, "", " ", []),
    "claims/0/source": (GONE, None, 3, {}),
    "claims/0/note": (None, 3, []),
    "claims/0/verdict": (GONE, None, 3, [], {}, "maybe"),
    "claims/0/measured": (GONE, None),
    "claims/0/more": (1,),
    "earlier": (GONE, *LIST, [3], [None], [{"status": 3}], [{"wall_seconds": "x"}], [{"started": 3}]),
    "arrays": (*MAPPING, {"a": None}, {"a": 3}, {"a": []}, {"a": {}}, {"../a": {}}, {"": {}}),
    "arrays/a/file": FILE,
    "arrays/a/shape": (GONE, None, 3, "x", {}, [-1], ["2"], [True], [2.0], [1 << 60], [1] * 65, [10**400]),
    "arrays/a/dtype": (GONE, None, 3, [], "object", "O", "nothing", "", "float64; import os", "x" * 5000),
    "arrays/a/bytes": (None, *COUNT),
    "arrays/a/sha256": (GONE, None, 3, "", "zz", "0" * 63, "G" * 64),
    "series": (None, 3, [], "x", {"loss": None}, {"loss": {}}, {"../loss": {}}),
    "series/loss/file": FILE,
    "series/loss/rows": (None, *COUNT),
    "series/loss/bytes": (None, *COUNT),
    "series/loss/sha256": (GONE, None, 3, "zz"),
}


@pytest.mark.parametrize("path", TABLE)
def test_a_record_that_does_not_fit_the_schema(run: Path, path: str) -> None:
    good, before = document(run), state(run.parents[1])
    for value in TABLE[path]:
        write(run, put(good, path, value))
        refused(lambda: Record.open(run))
        refused(lambda: Record.resume(run))
        write(run, good)
    Record.open(run)
    after = state(run.parents[1])
    assert after.keys() == before.keys()
    assert {name: value for name, value in after.items() if "record.json" not in name} == {
        name: value for name, value in before.items() if "record.json" not in name
    }


@pytest.mark.parametrize("path", [path for path in TABLE if path != "claims/0/more"])
def test_the_command_line_refuses_it_too(run: Path, path: str) -> None:
    """One value a place: the values are all tried above, and the other verbs below."""
    write(run, put(document(run), path, TABLE[path][-1]))
    exits_2("show", str(run))


def test_two_arrays_in_one_file(run: Path) -> None:
    value = document(run)
    value["arrays"]["a.1"] = {**value["arrays"]["a"], "file": "a.1.npy"}
    value["arrays"]["a"]["file"] = "a.1.npy"
    write(run, value)
    assert "a file of its own" in refused(lambda: Record.open(run))


RAW: dict[str, bytes] = {
    "empty": b"",
    "half": b'{"schema_version": 1, "kind"',
    "null": b"null",
    "list": b"[]",
    "text": b'"record"',
    "number": b"1",
    "zeros": b"\0" * 4096,
    "latin1": '{"kind": "é"}'.encode("latin1"),
    "utf-16": '{"kind": "a"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"schema_version": 1, "wall_seconds": NaN}',
    "Infinity": b'{"schema_version": 1, "wall_seconds": -Infinity}',
    "huge float": b'{"schema_version": 1, "wall_seconds": 1e999}',
    "huge int": b'{"schema_version": 1' + b"0" * 5000 + b"}",
    "half a surrogate": rb'{"schema_version": 1, "kind": "\ud800"}',
    "half a surrogate as key": rb'{"schema_version": 1, "\uDFFF": 1}',
    "nested lists": b"[" * 100_000,
    "nested and closed": b'{"schema_version": 1, "metrics": ' + b"[" * 900 + b"]" * 900 + b"}",
    "nested mappings": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "nested 70": b'{"schema_version": 1, "metrics": ' + b"[" * 70 + b"]" * 70 + b"}",
    "pickle": b"\x80\x04N.",
    "gigabytes of values": b"[" + b"{}," * 5_000_000 + b"{}]",
    "two documents": b"{}{}",
    "comment": b"{} // x",
}


@pytest.mark.parametrize("name", RAW)
def test_a_file_that_is_no_record(run: Path, name: str) -> None:
    (run / "record.json").write_bytes(RAW[name])
    all_refuse(run)


def _sparse(path: Path) -> None:
    with open(path, "wb") as handle:
        handle.truncate(LARGEST_JSON + 1)


NODES = NODES | {
    "too large": _sparse,
    "link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "link outside": lambda path: path.symlink_to(path.parents[2] / "thesis.tex"),
}


@pytest.mark.parametrize("name", NODES)
def test_something_else_in_place_of_the_record(run: Path, name: str) -> None:
    (run / "record.json").unlink()
    NODES[name](run / "record.json")
    all_refuse(run)


@pytest.mark.parametrize("name", [*NODES, "gone"])
@pytest.mark.parametrize("file", ["a.npy", "loss.jsonl"])
def test_something_else_in_place_of_a_file(run: Path, name: str, file: str) -> None:
    (run / file).unlink()
    if name != "gone":
        NODES[name](run / file)
    record = Record.open(run)
    message = refused((lambda: record.arrays["a"]) if file == "a.npy" else (lambda: record.series("loss")))
    assert "run again" in message or "put it there" in message or "remove it" in message
    assert ends("report", str(run)) in (0, 2)
    before = state(run.parents[1])
    with bounded(), pytest.warns(RuntimeWarning, match="dropped from the record"):
        resumed = Record.resume(run)
    assert resumed.dropped == ("a" if file == "a.npy" else "loss",)
    after = state(run.parents[1])
    assert {name: value for name, value in after.items() if "record.json" not in name} == {
        name: value for name, value in before.items() if "record.json" not in name and "page.html" not in name
    } | {name: value for name, value in after.items() if "page.html" in name}


def npy(header: bytes, version: bytes = b"\x01\x00", body: bytes = b"\0" * 48) -> bytes:
    width = 2 if version[0] == 1 else 4
    return b"\x93NUMPY" + version + len(header).to_bytes(width, "little") + header + body


def described(**changes: str) -> bytes:
    entries = {"descr": "'<f8'", "fortran_order": "False", "shape": "(2, 3)", **changes}
    return ("{" + ", ".join(f"'{key}': {value}" for key, value in entries.items()) + "}").encode() + b"\n"


ARRAYS: dict[str, bytes] = {
    "empty": b"",
    "no magic": b"x" * 128,
    "magic alone": b"\x93NUMPY\x01\x00",
    "no header": npy(b""),
    "not a literal": npy(b"__import__('os').getcwd()\n"),
    "huge header": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b"{" * 1000,
    "long header": npy(b"{" + b" " * 60_000),
    "version 9": npy(described(), b"\x09\x00"),
    "objects": npy(described(descr="'|O'")),
    "nested objects": npy(described(descr="[('a', '|O')]")),
    "other shape": npy(described(shape="(3, 2)")),
    "other type": npy(described(descr="'<f4'")),
    "huge shape": npy(described(shape="(1152921504606846976, 16)")),
    "negative shape": npy(described(shape="(-2, -3)")),
    "shape of texts": npy(described(shape="('2', '3')")),
    "no shape": npy(b"{'descr': '<f8'}\n"),
    "truncated": npy(described(), body=b"\0" * 40),
    "too long": npy(described(), body=b"\0" * 56),
    "pickle": b"\x80\x04N." * 20,
    "deep header": npy(b"(" * 5000 + b")" * 5000),
    "empty texts": npy(described(descr="'<U0'")),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_file_that_says_something_else(run: Path, name: str) -> None:
    """The record's own size and checksum fit: whoever made the file made the record too."""
    data, value = ARRAYS[name], document(run)
    (run / "a.npy").write_bytes(data)
    value["arrays"]["a"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write(run, value)
    refused(lambda: Record.open(run).arrays["a"])
    assert ends("report", str(run)) in (0, 2)


SERIES: dict[str, bytes] = {
    "not JSON": b"loss 0.5\n",
    "a number": b"3\n",
    "a list": b"[1]\n",
    "NaN": b'{"loss": NaN}\n',
    "deep": b'{"a":' * 500 + b"1" + b"}" * 500 + b"\n",
    "no end": b'{"loss": 1}',
    "zeros": b"\0" * 64 + b"\n",
    "not UTF-8": b'{"a": "\xff"}\n',
    "a row of megabytes": b'{"a": "' + b"x" * (3 << 20) + b'"}\n',
}


@pytest.mark.parametrize("name", SERIES)
def test_a_series_that_says_something_else(run: Path, name: str) -> None:
    data, value = SERIES[name], document(run)
    (run / "loss.jsonl").write_bytes(data)
    value["series"]["loss"] |= {
        "bytes": len(data),
        "rows": data.count(b"\n"),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    write(run, value)
    if name != "no end":
        refused(lambda: Record.open(run).series("loss").columns())
    else:
        refused(lambda: list(Record.open(run).series("loss")))
    assert ends("report", str(run)) in (0, 2)


METRICS: dict[str, Any] = {
    "sections": "summary", "section:summary": 3, "model": 3, "data": [], "texts": {"train": 3, "test": {"a": 1}},
    "certificates": 3, "plan": [], "timings": {"a": 1},
}  # fmt: skip
DATA: tuple[Any, ...] = (
        None, 3, "x", [], {}, {"table": 3}, {"table": [3, None]}, {"layers": [{}]}, {"pairs": [[1]]}, {"verdict": {}},
        {"mislabelled": 3}, {"duplicates": [3]}, {"predicted": "x"}, {"table": [{"tau": "x", "kernel": {}}]},
        {"network_accuracy": []}, {"table": [{"tau": 10**290}]})  # fmt: skip


@pytest.fixture(scope="module")
def xray(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("xray")
    Record.create(folder, kind="xray").finish()
    return document(folder)


SECTIONS = ("summary", "surrogates", "kernel", "layers", "explain", "problems", "computed")


def shown(tmp_path: Path, value: dict[str, Any], **metrics: dict[str, Any]) -> None:
    """The index over records with these metrics is made, whatever becomes of the pages of the records."""
    for name, held in metrics.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name, {**value, "metrics": held})
    (tmp_path / "good").mkdir()
    write(tmp_path / "good", value)
    assert ends("report", str(tmp_path)) == 0
    index = (tmp_path / "index.html").read_text()
    assert index.rstrip().endswith("</html>")
    assert index.count('/page.html"') == len(list(tmp_path.glob("*/page.html")))
    assert (tmp_path / "good" / "page.html").exists()
    assert ("Could not be read" in index) == (len(list(tmp_path.glob("*/page.html"))) <= len(metrics))


@pytest.mark.parametrize("data", DATA, ids=lambda data: repr(data)[:40])
def test_an_xray_whose_sections_hold_anything(tmp_path: Path, xray: dict[str, Any], data: Any) -> None:
    """What no schema fixes is shown as it is, or refused; the index stands in either case."""
    entry = {"status": "done", "data": data, "title": "T"}
    shown(tmp_path, xray, **{name: {"sections": [name], f"section:{name}": entry} for name in SECTIONS})


def test_an_xray_whose_metrics_hold_anything(tmp_path: Path, xray: dict[str, Any]) -> None:
    named = {name.replace(":", "-"): {"sections": ["summary"], name: value} for name, value in METRICS.items()}
    shown(tmp_path, xray, **named)

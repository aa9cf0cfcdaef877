"""Nothing that ntkscope did not write is ever replaced or removed: one place writes, and every writer knows its own files."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import ntkscope as ns
import ntkscope_papers
from contracts.full_disk import full_beyond
from ntkscope.cli import main
from ntkscope.core import NtkscopeError, Part, Record, Snapshot, UsageError
from ntkscope.core.files.atomic import NEW, atomic_file, is_ours, remove_leftovers
from ntkscope.core.files.lock import FolderLock
from ntkscope.storage._files import LocalFolder
from ntkscope.training import SnapshotStore, fit, save_snapshot
from ntkscope_papers.framework.drawing import save_figures
from ntkscope_papers.framework.pages import main as fill_page

SOURCE = Path(ns.__file__).parent
PAPERS = Path(ntkscope_papers.__file__).parent
WRITING = {
    "write_text", "write_bytes", "save_file", "savez", "savez_compressed", "savetxt", "tofile", "to_csv", "rmtree", "unlink",
    "remove_file", "replace_file", "rename", "rmdir", "copyfile", "copytree", "savefig", "ftruncate",
}  # fmt: skip
CALLS = {"os.replace", "os.rename", "os.remove", "os.link", "np.save", "torch.save"}
# What writes or removes files beside `core/files/atomic.py`, and why it may.
ALLOWED = {
    ("core/files/atomic.py", "unlink"): "the place itself: its own temporary files",
    ("core/records/record.py", "unlink"): "files of arrays that record.json lists, compared with their checksums",
    ("core/records/series.py", "ftruncate"): "a series that record.json lists, compared with its checksum",
    ("core/records/series.py", "os.open"): "a new file, exclusively, or one that record.json lists",
    ("linalg/spectra/band.py", "tofile"): "into a temporary folder of its own",
    ("storage/_files.py", "unlink"): "a key of a store that was recognised",
    ("ntkscope_papers/framework/drawing.py", "savefig"): "into memory",
    ("ntkscope_papers/framework/legs.py", "rmdir"): "an empty folder",
    ("training/store.py", "unlink"): "snapshots with our mark; settings that were read and recognised",
    ("training/store.py", "rmdir"): "an empty folder",
    ("xray/job.py", "unlink"): "a record that was read and recognised as an X-ray in which nothing was computed",
}


def writes(call: ast.Call) -> str | None:
    """The name of a call that writes or removes a file, as far as its text tells."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = call.func.value.id if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) else ""
    if name == "open":
        if owner == "os":
            return "os.open" if "O_WRONLY" in ast.unparse(call) or "O_CREAT" in ast.unparse(call) else None
        modes = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
        writing = any(isinstance(mode, str) and set(mode) & set("wax+") and len(mode) <= 3 for mode in modes)
        return "open" if writing else None
    if f"{owner}.{name}" in CALLS:
        return f"{owner}.{name}"
    return name if name in WRITING else None


def found_writers() -> set[tuple[str, str]]:
    found = set()
    for path in (*SOURCE.rglob("*.py"), *PAPERS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in (*(f"{name}(" for name in WRITING), "open(", *CALLS)):
            continue  # quicker than to parse it
        for node in ast.walk(ast.parse(text)):
            name = writes(node) if isinstance(node, ast.Call) else None
            if name:
                found.add((path.relative_to(SOURCE if path.is_relative_to(SOURCE) else PAPERS.parent).as_posix(), name))
    return found


def test_one_place_writes() -> None:
    place = {("core/files/atomic.py", name) for name in ("open", "os.replace", "os.link")}
    assert found_writers() - place == set(ALLOWED)


def test_the_scan_sees_what_writes() -> None:
    for line in [
        "open(p, 'w')",
        "p.open('ab')",
        "p.write_text('')",
        "np.save(p, x)",
        "os.replace(a, b)",
        "shutil.rmtree(p)",
    ]:
        assert writes(ast.parse(line, mode="eval").body) is not None, line
    reads = "open(p)|p.open('rb')|text.replace('a', 'b')|names.remove(x)|np.load(p)|os.open(p, os.O_RDONLY)"
    for line in reads.split("|"):
        assert writes(ast.parse(line, mode="eval").body) is None, line


# -- every writer, over its own file and over another's -----------------------------------------------------------------


def small() -> Snapshot:
    return Snapshot(step=0, epoch=0.0, params={"w": torch.ones(2)}, buffers={})


def figure(record: Record) -> dict[str, Any]:
    drawn = Figure()
    drawn.subplots().plot([1, 2])
    return {"loss": drawn}


def scored(folder: Path) -> Record:
    record = Record.create(folder, kind="xray")
    record.array("labels.train", np.array([0, 1]))
    record.array("problems.label_score", np.array([0.5, -0.5]))
    record.put(**{"section:problems": {"status": "done"}})
    record.finish()
    return record


def writers(tmp_path: Path) -> dict[Path, Callable[[Path], Any]]:
    """Files, and what writes each."""
    record = Record.create(tmp_path / "r", kind="example")
    record.finish()
    page, index = tmp_path / "r/page.html", tmp_path / "index.html"
    figures = {
        tmp_path / f"r/figures/loss.{e}": lambda path: save_figures(figure, Record.open(tmp_path / "r"))
        for e in ("svg", "png")
    }
    return {
        page: lambda path: ns.report.write_page(tmp_path / "r"),
        tmp_path / "out.html": lambda path: ns.report.write_page(tmp_path / "r", path),
        index: lambda path: ns.report.write_index(tmp_path),
        tmp_path / "w.safetensors": lambda path: ns.models.save_weights(nn.Linear(2, 2), path),
        tmp_path / "s.safetensors": lambda path: save_snapshot(small(), path),
        **figures,
    }


NAMES = [
    "r/page.html", "out.html", "index.html", "w.safetensors", "s.safetensors", "r/figures/loss.svg", "r/figures/loss.png",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_writer_replaces_its_own_file_and_no_other(tmp_path: Path, name: str) -> None:
    path, others = tmp_path / name, b"<html>ntkscope is mentioned here</html>"
    write = writers(tmp_path)[path]
    write(path)
    write(path)  # over its own
    path.write_bytes(others)
    with pytest.raises(UsageError, match="left as it is"):
        write(path)
    assert path.read_bytes() == others
    path.unlink()
    path.symlink_to(tmp_path / "thesis")
    with pytest.raises(UsageError, match="left as it is"):
        write(path)
    assert path.is_symlink()
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("name", ["scores.csv", "scores.json"])
def test_scores_of_someone_else_are_kept(tmp_path: Path, name: str) -> None:
    scored(tmp_path)
    ns.report.write_page(tmp_path)
    ns.report.write_page(tmp_path)
    path = tmp_path / name
    assert path.exists()
    path.write_text("index,score\r\n0,1\r\n")
    with pytest.raises(UsageError, match="left as it is"):
        ns.report.write_page(tmp_path)
    assert path.read_text() == "index,score\n0,1\n"


def test_figures_that_an_earlier_version_drew_are_drawn_again(tmp_path: Path) -> None:
    with Record.create(tmp_path / "r", kind="example") as record:
        record.put(figures=["figures/loss.svg", "figures/loss.png"])
        (tmp_path / "r/figures").mkdir()
        (tmp_path / "r/figures/loss.svg").write_text("<svg/>")
        save_figures(figure, record)
    assert is_ours(tmp_path / "r/figures/loss.svg", b"<dc:title>ntkscope</dc:title>")


@pytest.mark.parametrize("out", ["thesis.pt", "thesis.pt/", "new/"])
def test_report_does_not_replace_a_thesis(tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    Record.create(tmp_path / "r", kind="example").finish()
    (tmp_path / "thesis.pt").write_bytes(b"three years")
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path / "r"), "--out", f"{tmp_path}/{out}"])
    assert left.value.code == 2
    assert "ntkscope: " in capsys.readouterr().err
    assert (tmp_path / "thesis.pt").read_bytes() == b"three years"
    assert not (tmp_path / "new").exists()


def test_a_page_without_our_marks_is_not_filled(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("my notes")
    with pytest.raises(UsageError, match="left as it is"):
        fill_page([str(page), str(tmp_path)])
    assert page.read_text() == "my notes"


# -- folders ------------------------------------------------------------------------------------------------------------


def test_a_record_leaves_the_files_of_others(tmp_path: Path) -> None:
    names = ("kernel.npy", ".notes.part", ".a.1-0123abcd.part.txt", "loss.jsonl", ".b.part")
    theirs = {name: name.encode() for name in names}
    for name, content in theirs.items():
        (tmp_path / name).write_bytes(content)
    with Record.create(tmp_path, kind="example") as record:
        record.array("kernel", np.arange(3))
        record.array("kernel", np.arange(4))
        record.series("loss").append({"a": 1})
    with Record.resume(tmp_path) as again:
        assert again.arrays["kernel"].tolist() == [0, 1, 2, 3]
        again.discard("kernel")
    assert {name: (tmp_path / name).read_bytes() for name in theirs} == theirs


def test_leftovers_of_ended_processes_alone_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / f".a.{ended.pid}-0123abcd.part").touch()
    (tmp_path / f".a.{os.getpid()}-0123abcd.part").touch()  # of an earlier process with our number
    alive = tmp_path / f".a.{os.getppid()}-0123abcd.part"
    alive.touch()
    (tmp_path / f".d.{ended.pid}-0123abcd.part").mkdir()
    with atomic_file(tmp_path / "b", over=NEW) as handle:
        handle.write(b"whole")
        remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([alive.name, f".d.{ended.pid}-0123abcd.part", "b"])


def test_a_new_file_is_never_written_over(tmp_path: Path) -> None:
    def late() -> None:
        with atomic_file(tmp_path / "a", over=NEW):
            (tmp_path / "a").write_bytes(b"first")

    with pytest.raises(FileExistsError):
        late()
    assert (tmp_path / "a").read_bytes() == b"first"
    assert LocalFolder(tmp_path).put("a", b"late", new=True) is False
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_store_of_snapshots_leaves_the_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "latest.safetensors").write_bytes(b"mine")
    part = Part(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(NtkscopeError):
        fit(nn.Linear(2, 2), part, lr=0.1, steps=2, store=tmp_path).final()
    assert (tmp_path / "latest.safetensors").read_bytes() == b"mine"


def test_a_discarded_store_leaves_the_files_of_others(tmp_path: Path) -> None:
    part = Part(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))
    for folder in ("alone", "shared"):
        fit(nn.Linear(2, 2), part, lr=0.1, steps=2, store=tmp_path / folder).final()
    (tmp_path / "shared/notes.txt").write_text("mine")
    (tmp_path / "shared/step-000000007.safetensors").write_text("mine")
    for folder in ("alone", "shared", "missing"):
        SnapshotStore(tmp_path / folder).discard()
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == [
        "shared",
        "shared/notes.txt",
        "shared/step-000000007.safetensors",
    ]


# -- two processes ------------------------------------------------------------------------------------------------------


def other_process(act: Callable[[], object]) -> str:
    """What `act` raises in another process; empty if nothing."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            act()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}"[:4000].encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def test_one_process_writes_to_a_record(tmp_path: Path) -> None:
    with Record.create(tmp_path, kind="example") as record:
        busy = "RecordError: another process is writing"
        assert busy in other_process(lambda: Record.resume(tmp_path))
        assert busy in other_process(lambda: Record.create(tmp_path, kind="example"))
        assert other_process(lambda: Record.open(tmp_path)) == ""  # reading is free
        record.put(a=1)
        with Record.resume(tmp_path) as again:  # in one process, as before
            again.put(b=2)
    assert other_process(lambda: Record.resume(tmp_path)) == ""
    unfinished = Record.resume(tmp_path)
    unfinished.finish()
    assert other_process(lambda: Record.resume(tmp_path)) == ""


def test_one_process_trains_into_a_store(tmp_path: Path) -> None:
    part = Part(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))
    run = fit(nn.Linear(2, 2), part, lr=0.1, steps=2, store=tmp_path, seed=0)
    said = other_process(lambda: SnapshotStore(tmp_path).begin({}, None))
    assert "RecordError: another process is writing" in said
    run.final()
    assert "another process" not in other_process(lambda: SnapshotStore(tmp_path).begin({}, None))


def test_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    lock, second = FolderLock(tmp_path), FolderLock(tmp_path)

    def refused() -> bool:
        return "another process" in other_process(lambda: FolderLock(tmp_path))

    assert refused()
    lock.release()
    lock.release()
    assert refused()  # and a child that has ended did not release it
    del second
    assert not refused()
    FolderLock(tmp_path / "missing").release()


def _record(folder: Path, value: float) -> None:
    known = (folder / "record.json").exists()
    with Record.resume(folder) if known else Record.create(folder, kind="example", name="disk") as record:
        record.array("numbers", np.full(4000, value))
        record.put(value=value)


def _figures(folder: Path, value: float) -> None:
    if not (folder / "record.json").exists():
        Record.create(folder, kind="example", name="disk").finish()
    figure = Figure()
    figure.subplots().plot([0, value])
    save_figures(lambda record: {"line": figure}, Record.open(folder))


def _page(folder: Path, value: float) -> None:
    if not (folder / "record.json").exists():
        Record.create(folder, kind="example", name="disk").finish()
    ns.report.write_page(folder)


def _weights(folder: Path, value: float) -> None:
    folder.mkdir(exist_ok=True)
    model = nn.Linear(40, 40)
    nn.init.constant_(model.weight, value)
    ns.models.save_weights(model, folder / "w.safetensors")


def _snapshot(folder: Path, value: float) -> None:
    folder.mkdir(exist_ok=True)
    save_snapshot(Snapshot(1, 1.0, {"w": torch.full((2000,), value)}, {}), folder / "s.safetensors")


def _kernel(folder: Path, value: float) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    x = torch.arange(180, dtype=torch.float64).view(60, 3) / 100
    K = ns.kernel("trntk", model, x, store=folder)
    torch.testing.assert_close(K.dense().cpu(), ns.kernel("trntk", model, x).dense())


@pytest.mark.guard
@pytest.mark.parametrize("size", [1, 700, 5000])
@pytest.mark.parametrize("write", [_record, _figures, _page, _weights, _snapshot, _kernel])
def test_a_full_disk(tmp_path: Path, write: Callable[[Path, float], None], size: int) -> None:
    """A refusal that says so; nothing half-written stays, what was there before is unchanged, and later it works."""
    for folder, begun in ((tmp_path / "new", False), (tmp_path / "old", True)):
        if begun and write is not _kernel:  # a store that is complete is not written again
            write(folder, 1.0)
        files = {"*.safetensors", "*.npy", "page.html", "line.*"}
        before = {path: path.read_bytes() for pattern in files for path in folder.rglob(pattern)}
        with full_beyond(size), pytest.raises(NtkscopeError, match=r"could not write|cannot write"):
            write(folder, 2.0)
        assert not list(tmp_path.rglob("*.part"))
        assert {path: path.read_bytes() for pattern in files for path in folder.rglob(pattern)} == before
        write(folder, 2.0)


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(NtkscopeError, match=r"cannot write .*No such file or directory"):
        ns.models.save_weights(nn.Linear(1, 1), tmp_path / "none" / "w.safetensors")

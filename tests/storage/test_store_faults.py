"""What happens to a store really happens here: processes are killed, disks are full, bytes flip, two write at once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ntkscope.core.errors import DamagedTile, StoreError
from ntkscope.storage import DamageWarning, KernelStore, TiledGram, fill, open_kernel
from oracles.filler import sources
from oracles.tiles import Products

pytestmark = [
    pytest.mark.guard,
    pytest.mark.skipif(os.name != "posix", reason="kills and mounts as POSIX has them"),
]
TESTS = Path(__file__).parents[1]


class Filler:
    """The process of `oracles.filler`."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oracles.filler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _say(self, text: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self._answer()

    def start(self, source: str, url: str | Path) -> int:
        return int(self._say(f"start\t{source}\t{url}"))

    def wait(self, identity: int) -> int:
        """How the process ended: 0, or minus the signal that killed it."""
        return os.waitstatus_to_exitcode(int(self._say(f"wait\t{identity}")))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@pytest.fixture(scope="module")
def filler() -> Iterator[Filler]:
    process = Filler()
    yield process
    process.close()


def files(folder: Path) -> dict[str, bytes]:
    """All but the account of checks, which says how long they took."""
    found = (p for p in folder.rglob("*") if p.is_file() and p.name != "certificate.json")
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def kill_often(filler: Filler, source: str, folder: Path, kills: int, seconds: float, seed: int) -> list[int]:
    """Fill, killing at random moments until that many processes were killed at work, in three stages or more; how many
    tiles each kill met.

    `seconds` is what a whole filling takes. One that ended before its kill is begun anew, in an empty folder.
    """
    draw = random.Random(seed)
    met: list[int] = []
    while len(met) < kills or len(set(met)) < 3:
        assert len(met) < 10 * kills, met
        identity = filler.start(source, folder)
        time.sleep(draw.uniform(0, seconds / 2))
        os.kill(identity, signal.SIGKILL)
        status = filler.wait(identity)
        assert status in (0, -signal.SIGKILL), status
        if status:
            met.append(len(list(folder.glob("values/c/*/[0-9]*"))))
        else:
            shutil.rmtree(folder)
    return met


@pytest.mark.parametrize(
    ("kills", "source"),
    [
        pytest.param(5, "small network", marks=pytest.mark.guard),
        pytest.param(5, "products", marks=pytest.mark.guard),
        pytest.param(20, "network", marks=[pytest.mark.nightly, pytest.mark.long]),
        pytest.param(60, "products", marks=[pytest.mark.nightly, pytest.mark.long]),
    ],
)
def test_killed_at_random_moments_it_ends_bit_identical(
    filler: Filler, tmp_path: Path, kills: int, source: str
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    start = time.monotonic()
    assert filler.wait(filler.start(source, whole)) == 0
    met = kill_often(filler, source, broken, kills, time.monotonic() - start, seed=kills)
    expected = files(whole)
    assert len(met) >= kills
    for name, content in files(broken).items():  # whatever has its final name is whole
        assert name.endswith(".part") or content == expected[name]
    before = {p: p.stat().st_mtime_ns for p in broken.glob("values/c/*/[0-9]*")}
    assert filler.wait(filler.start(source, broken)) == 0
    assert all(p.stat().st_mtime_ns == t for p, t in before.items())  # what was there was not computed again
    assert files(broken) == expected
    grid = sources()[source].grid
    assert len(expected) == 2 * (len(grid) + grid.shape[0]) + 3  # tiles, pieces of the diagonal, their seals, documents


def test_two_processes_at_once_do_not_corrupt(filler: Filler, tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert filler.wait(filler.start("products", alone)) == 0
    running = [filler.start("products", shared) for _ in range(3)]
    assert [filler.wait(identity) for identity in running] == [0, 0, 0]
    assert files(shared) == files(alone)


def test_leftovers_cleared_under_a_writer_are_written_again(tmp_path: Path) -> None:
    """Who begins to fill clears temporary files, also those of writers at work, who notice and lose nothing."""
    source = Products(torch.randn(60, 2), size=4)
    store, stop, taken = KernelStore.prepare(tmp_path / "k", source), threading.Event(), []

    def clear() -> None:
        while not stop.is_set():
            found = list((tmp_path / "k").rglob(".*.part"))
            store.clear_leftovers()
            if found:
                taken.extend(found)
                stop.wait(0.02)

    thread = threading.Thread(target=clear)
    thread.start()
    try:
        assert fill(store, source) == len(store.grid)
    finally:
        stop.set()
        thread.join()
    assert taken
    assert not store.damaged()
    assert not store.missing()


def test_of_different_kernels_begun_at_once_one_gets_the_folder(tmp_path: Path) -> None:
    """Eight begin at the same moment; seven are told what differs, and the files are the first one's."""
    sides = range(10, 18)
    gate = threading.Barrier(len(sides))
    outcomes: dict[int, Any] = {}

    def begin(n: int) -> None:
        source = Products(torch.ones(n, 1), fingerprint={"side": str(n)})
        gate.wait()
        try:
            outcomes[n] = KernelStore.prepare(tmp_path / "k", source)
        except StoreError as error:
            outcomes[n] = error

    threads = [threading.Thread(target=begin, args=(n,)) for n in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [n for n in sides if isinstance(outcomes[n], KernelStore)]
    assert len(winners) == 1, outcomes
    for n in set(sides) - set(winners):
        assert f"side is '{n}' now and '{winners[0]}' in the store" in str(outcomes[n])
    alone = KernelStore.prepare(
        tmp_path / "alone", Products(torch.ones(winners[0], 1), fingerprint=outcomes[winners[0]].fingerprint)
    )
    assert alone.grid == outcomes[winners[0]].grid
    assert files(tmp_path / "k") == files(tmp_path / "alone")


def filled(folder: Path) -> tuple[KernelStore, Products]:
    source = Products(torch.randn(20, 2, generator=torch.Generator().manual_seed(1)), size=6)
    store = KernelStore.prepare(folder, source)
    fill(store, source)
    return store, source


@pytest.mark.parametrize("harm", ["first byte", "middle byte", "checksum", "truncated", "empty", "longer"])
@pytest.mark.parametrize("file", ["values/c/1/2", "values/c/3/3", "row_diagonal/c/2"])
def test_a_corrupted_chunk_is_detected_named_and_recomputed(tmp_path: Path, harm: str, file: str) -> None:
    store, source = filled(tmp_path / "k")
    before = files(tmp_path / "k")
    path = tmp_path / "k" / file
    data = bytearray(path.read_bytes())
    if harm in ("truncated", "empty", "longer"):
        data = {"truncated": data[: len(data) // 2], "empty": bytearray(), "longer": data + b"\0"}[harm]
    else:
        data[{"first byte": 0, "middle byte": len(data) // 2, "checksum": -1}[harm]] ^= 0x40
    path.write_bytes(data)

    tile = {"values/c/1/2": (1, 2), "values/c/3/3": (3, 3), "row_diagonal/c/2": (2, 2)}[file]
    assert store.damaged() == [tile]
    reading = (lambda: store.read(*tile)) if file.startswith("values") else store.row_diagonal
    with pytest.raises(DamagedTile, match=str(path)):
        reading()
    with pytest.raises(DamagedTile):
        TiledGram(store) @ torch.ones(20)

    with pytest.warns(DamageWarning, match=rf"tiles \({tile[0]}, {tile[1]}\) are damaged"):
        assert fill(store, source) == 1
    assert files(tmp_path / "k") == before
    assert fill(store, source) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tiny file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_says_so_and_finished_tiles_survive(small_disk: Path, tmp_path: Path) -> None:
    source = Products(torch.randn(400, 2, generator=torch.Generator().manual_seed(1)), size=100)  # 10 tiles of 40 kB
    store = KernelStore.prepare(small_disk / "k", source)
    with pytest.raises(StoreError, match=r"no space left to write .*values/c/.*free some space and run again"):
        fill(store, source)
    done = store.done()
    assert 2 <= len(done) < 10
    assert not store.damaged()
    assert not list(small_disk.rglob("*.part"))
    for i, j in done:
        assert torch.equal(store.read(i, j), source.tile(i, j).values)
    with pytest.raises(StoreError, match=f"{len(done)} of 10 tiles"):
        open_kernel(small_disk / "k")
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)  # somebody freed some space
    assert fill(store, source) == 10 - len(done)
    whole = KernelStore.prepare(tmp_path / "whole", source)
    fill(whole, source)
    assert files(small_disk / "k") == files(tmp_path / "whole")


def test_a_folder_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=str(tmp_path / "file" / "k")):
        KernelStore.prepare(tmp_path / "file" / "k", Products(torch.ones(4, 2)))

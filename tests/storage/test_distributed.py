"""Kernels filled by real Dask workers: the same bytes whoever computes, and after workers or the scheduler die."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import NumericalError, UsageError, generator, numerics
from ntkscope.core.errors import StoreError
from ntkscope.kernels import _projecting
from ntkscope.linalg import Gram
from ntkscope.linalg.grams.tiling import Grid, TileValues
from ntkscope.storage.distributed import DistributedError, as_client, strips
from ntkscope.storage.feature_store import FeatureStore
from ntkscope.storage.filling import fill
from ntkscope.storage.kernel_store import KernelStore
from oracles import resumed
from oracles.slow_tiles import SlowTiles, notes

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
register_pickle_by_value = pytest.importorskip("cloudpickle").register_pickle_by_value
pytestmark = [pytest.mark.guard, pytest.mark.filterwarnings("ignore::ResourceWarning")]
TESTS = Path(__file__).parents[1]


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "2 minutes"}),  # a machine may be slow
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=50,
        ) as made,
        distributed.Client(made, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    with cluster(2) as client:
        yield client


def content(folder: Path) -> dict[str, bytes]:
    """All files but the certificate, which says how long checks took."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "certificate.json")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def local_bytes(tmp_path: Path, grid: Grid, **options: Any) -> dict[str, bytes]:
    source = SlowTiles(grid, str(tmp_path / "local.log"), **options)
    fill(KernelStore.prepare(tmp_path / "local", source), source)
    return content(tmp_path / "local")


def begun(
    tmp_path: Path, grid: Grid, seconds: float = 0.0, kind: type[SlowTiles] = SlowTiles
) -> tuple[KernelStore, Any]:
    """An empty store and its source, which notes what it does in the file `log`."""
    source = kind(grid, str(tmp_path / "log"), seconds=seconds)
    return KernelStore.prepare(tmp_path / "store", source), source


def wait_until(condition: Callable[[], bool], ended: dict[str, Any]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        assert not ended, "it ended before"
        time.sleep(0.01)


@contextmanager
def running(work: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """`work` in a thread; when it ended, its `value` or `error` is in the mapping."""
    ended: dict[str, Any] = {}

    def run() -> None:
        try:
            ended["value"] = work()
        except Exception as error:
            ended["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    yield ended
    thread.join(90)
    assert not thread.is_alive()


def test_strips_cover_the_tiles_once_and_stay_in_a_row() -> None:
    grid = Grid(90, 90, 10, symmetric=True)
    for length in (1, 3, 100):
        found = strips(grid, length, [(0, 4), (2, 2)])
        assert [(s.row, j) for s in found for j in s.columns] == list(grid)
        assert max(len(s.columns) for s in found) <= length
        assert [(s.row, j) for s in found for j in sorted(s.again)] == [(0, 4), (2, 2)]


@pytest.mark.parametrize("grid", [Grid(45, 45, 7, symmetric=True), Grid(20, 33, 6)], ids=["symmetric", "cross"])
def test_same_bytes_as_in_this_process(two: Any, tmp_path: Path, grid: Grid) -> None:
    store, source = begun(tmp_path, grid, 0.01)
    assert fill(store, source, executor=two) == len(grid)
    assert content(tmp_path / "store") == local_bytes(tmp_path, grid)
    assert sorted(notes(tmp_path / "log", "tile"))[0][:2] == [0, 0]
    assert len(notes(tmp_path / "log", "tile")) == len(grid), "a tile was computed twice"
    engines = [pid for (pid,) in notes(tmp_path / "log", "engine")]
    assert len(engines) == len(set(engines)) == 2, "each worker builds its engine once"
    assert fill(store, source, executor=two) == 0
    assert len(notes(tmp_path / "log", "tile")) == len(grid) + 1, "one tile is computed again and compared"
    assert os.getpid() not in {pid for *_, pid in notes(tmp_path / "log", "tile")}


def small_network() -> tuple[nn.Module, torch.Tensor]:
    draw = generator(0, "a small network")
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    for value in model.parameters():
        value.data = torch.randn(value.shape, generator=draw, dtype=torch.float64)
    return model, torch.randn(22, 5, generator=draw, dtype=torch.float64)


def test_workers_say_what_they_checked(two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small_network()
    monkeypatch.setattr("ntkscope.tangent.kernel.plan.LARGEST", 6)  # samples a tile
    here: Any = ns.kernel("trntk", model, x, store=tmp_path / "here")
    there: Any = ns.kernel("trntk", model, x, store=tmp_path / "there", executor=two)
    assert torch.equal(there.dense(), here.dense())
    assert len(there.store.grid) == 10
    assert there.certificate.checked == there.certificate.blocks >= here.certificate.blocks >= 10
    assert 0 < there.certificate.worst < there.certificate.tolerance
    blocks = there.certificate.blocks
    there.store.drop(1, 2)
    again = ns.kernel("trntk", model, x, store=tmp_path / "there", executor=two)
    assert again.certificate.blocks > blocks
    assert ns.open_kernel(str(tmp_path / "there")).certificate == again.certificate


@pytest.mark.parametrize(("name", "kind"), [("proj-trntk", "kronecker"), ("proj-pntk", "rademacher")])
def test_projected_features(two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    """Chunks of features made by workers: the same bytes as here, and only those that are missing."""
    model, x = small_network()
    monkeypatch.setitem(_projecting.BLOCK, "cpu", 4)
    options: dict[str, Any] = {"kind": kind, "dim": 128}
    here: Any = ns.kernel(name, model, x, store=tmp_path / "here", **options)
    there: Any = ns.kernel(name, model, x, store=tmp_path / "there", executor=two, **options)
    assert content(tmp_path / "there") == content(tmp_path / "here")
    store = FeatureStore.open(tmp_path / "there")
    assert len(store) == 6
    assert there.certificate.checked == there.certificate.blocks == here.certificate.blocks == 6
    store.drop(2)
    again = ns.kernel(name, model, x, store=tmp_path / "there", executor=two, **options)
    assert torch.equal(again.dense(), here.dense())
    assert again.certificate.blocks == 7
    assert content(tmp_path / "there") == content(tmp_path / "here")
    wrong = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with pytest.raises(StoreError, match="model"):
        ns.kernel(name, wrong, x, store=tmp_path / "there", executor=two, **options)


def test_strips_of_a_row_keep_to_a_worker(two: Any, tmp_path: Path) -> None:
    grid = Grid(160, 160, 10)
    store, source = begun(tmp_path, grid)
    fill(store, source, executor=two)
    followed: dict[int, tuple[int, int]] = {}
    same = 0
    for i, j, pid in notes(tmp_path / "log", "tile"):
        same += followed.get(pid) == (i, j - 1)
        followed[pid] = (i, j)
    assert same >= 0.8 * len(grid)  # strips of eight: seven of eight tiles follow their neighbour


def test_only_missing_and_damaged_tiles_are_computed(two: Any, tmp_path: Path) -> None:
    grid = Grid(40, 40, 8, symmetric=True)
    expected = local_bytes(tmp_path, grid)
    source = SlowTiles(grid, str(tmp_path / "log"))
    store = KernelStore.prepare(tmp_path / "local", source)
    for tile in [(0, 3), (2, 2)]:
        store.drop(*tile)
    damaged = tmp_path / "local/values/c/1/4"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.warns(RuntimeWarning, match=r"\(1, 4\)"):
        assert fill(store, source, executor=two) == 3
    computed = [line[:2] for line in notes(tmp_path / "log", "tile")]
    assert sorted(computed[1:]) == [[0, 3], [1, 4], [2, 2]]
    assert computed[0] not in computed[1:], "first one that is there, to compare"
    assert content(tmp_path / "local") == expected


@pytest.mark.guard
def test_worker_killed_costs_its_running_tile(two: Any, tmp_path: Path) -> None:
    grid = Grid(90, 90, 10, symmetric=True)
    log = tmp_path / "log"
    store, source = begun(tmp_path, grid, 0.05)
    two.wait_for_workers(2)
    with running(lambda: fill(store, source, executor=two)) as ended:
        wait_until(lambda: len(notes(log, "tile")) >= 10, ended)
        victim = notes(log, "start")[-1][2]
        os.kill(victim, signal.SIGKILL)
    assert ended == {"value": len(grid)}
    assert content(tmp_path / "store") == local_bytes(tmp_path, grid)
    started = notes(log, "start")
    assert victim in {pid for *_, pid in started}
    assert len(started) - len(grid) <= 1, "more than the running tile was lost"


@pytest.mark.nightly
def test_all_workers_killed_at_once(tmp_path: Path) -> None:
    """The source goes with its last holder; it is sent again to the workers Dask's nannies start."""
    grid = Grid(60, 60, 10, symmetric=True)
    log = tmp_path / "log"
    store, source = begun(tmp_path, grid, 0.05)
    with cluster(1) as client, running(lambda: fill(store, source, executor=client)) as ended:
        wait_until(lambda: len(notes(log, "tile")) >= 5, ended)
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
    assert ended == {"value": len(grid)}
    assert content(tmp_path / "store") == local_bytes(tmp_path, grid)
    assert len(notes(log, "engine")) == 2
    assert len(notes(log, "start")) - len(grid) <= 1


class Cluster:
    """A scheduler and a worker as processes of their own, as on a cluster of machines."""

    def __init__(self, folder: Path, *paths: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, TESTS]))}
        common = ["--host", "127.0.0.1", "--no-dashboard"]
        module = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", str(port)]
        self.scheduler = subprocess.Popen([*module, *common], env=environment, **quiet)
        module = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-nanny"]
        self.worker = subprocess.Popen([*module, *common], env=environment, **quiet)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.worker, self.scheduler):
            process.kill()
            process.wait()


@pytest.mark.nightly
def test_scheduler_killed_and_resumed_here(tmp_path: Path) -> None:
    grid = Grid(90, 90, 10, symmetric=True)
    log = tmp_path / "log"
    store, source = begun(tmp_path, grid, 0.1)
    with Cluster(tmp_path) as machines:
        with running(lambda: fill(store, source, executor=machines.address)) as ended:
            wait_until(lambda: len(notes(log, "tile")) >= 6, ended)
            machines.scheduler.kill()
            killed = time.monotonic()
        assert time.monotonic() - killed < 30
        machines.worker.wait(30)  # it ends its tile and goes
    assert isinstance(ended["error"], DistributedError)
    assert "scheduler at tcp://127.0.0.1" in str(ended["error"])
    assert "tiles are safe" in str(ended["error"])
    safe = len(store.done())
    assert 6 <= safe < len(grid)
    again = SlowTiles(grid, str(tmp_path / "again"))
    assert fill(store, again) == len(grid) - safe == len(notes(tmp_path / "again", "tile")) - 1  # one is compared
    assert content(tmp_path / "store") == local_bytes(tmp_path, grid)


@pytest.mark.nightly
def test_workers_that_come_later_take_part(tmp_path: Path) -> None:
    grid = Grid(90, 90, 10, symmetric=True)
    log = tmp_path / "log"
    store, source = begun(tmp_path, grid, 0.2)
    with cluster(1) as client, running(lambda: fill(store, source, executor=client)) as ended:
        wait_until(lambda: len(notes(log, "tile")) >= 1, ended)
        client.cluster.scale(3)
    assert ended == {"value": len(grid)}
    assert len({pid for *_, pid in notes(log, "tile")}) >= 2
    assert content(tmp_path / "store") == local_bytes(tmp_path, grid)


def test_threads_of_a_worker_work_on_one_tile(tmp_path: Path) -> None:
    class Watched(SlowTiles):
        def tile(self, i: int, j: int) -> TileValues:
            self._note(f"threads {torch.get_num_threads()}")
            return super().tile(i, j)

    threads = torch.get_num_threads()
    grid = Grid(30, 30, 5)
    store, source = begun(tmp_path, grid, 0.001, Watched)
    in_this_process = {"processes": False, "n_workers": 1, "threads_per_worker": 3, "dashboard_address": None}
    with distributed.Client(**in_this_process, silence_logs=50, set_as_default=False) as client:
        assert fill(store, source, executor=client) == len(grid)
    order = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines() if "engine" not in line]
    assert order == ["threads", "start", "tile"] * len(grid), "two tiles at once"
    assert {count for count, _ in notes(tmp_path / "log", "threads")} == {3}
    assert torch.get_num_threads() == threads
    assert content(tmp_path / "store") == local_bytes(tmp_path, grid)


@pytest.mark.nightly
def test_interrupt_stops_the_workers(two: Any, tmp_path: Path) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("an interrupt reaches the main thread")
    grid = Grid(300, 300, 10)
    log = tmp_path / "log"
    store, source = begun(tmp_path, grid, 0.05)

    ended = threading.Event()

    def press() -> None:
        wait_until(lambda: len(notes(log, "tile")) >= 4, {})
        while not ended.is_set():  # an interrupt that falls into a finalizer is lost, and pressed again
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(1)

    thread = threading.Thread(target=press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & ignores it
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            fill(store, source, executor=two)
        ended.set()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    started = len(notes(log, "start"))
    time.sleep(0.3)
    assert len(notes(log, "start")) <= started + 2, "workers go on with their strips"
    assert len(store.done()) >= 4


# -- what is said when it cannot be -------------------------------------------------------------------------------------


def test_executors(two: Any) -> None:
    with as_client(two) as client:
        assert client is two
    assert two.status == "running"
    with as_client(two.scheduler.address) as client:
        assert client is not two
        assert client.submit(sum, [1, 2]).result() == 3
    assert client.status == "closed"
    with pytest.raises(UsageError, match="closed"), as_client(client):
        pass
    for wrong in (4, "", two.cluster):
        with pytest.raises(UsageError, match="Client"), as_client(wrong):
            pass


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ntkscope.storage.distributed.CONNECT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:9", "no such thing"):
        with pytest.raises(DistributedError, match="dask scheduler"), as_client(address):
            pass


def test_package_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(DistributedError, match=r"ntkscope\[distributed\]"), as_client("tcp://127.0.0.1:8786"):
        pass


def test_store_no_worker_can_see(two: Any, tmp_path: Path) -> None:
    source = SlowTiles(Grid(4, 4, 2), str(tmp_path / "log"))
    store = KernelStore.prepare("memory://nowhere/else", source)  # every process has a memory of its own
    with pytest.raises(DistributedError, match="sees no store"):
        fill(store, source, executor=two)


def test_folder_that_is_not_shared(two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same path leads every process to a folder of its own, as it does on machines without a shared disk."""
    monkeypatch.setattr("ntkscope.storage.distributed.VISIBLE_SECONDS", (0, 0.1))
    source = SlowTiles(Grid(4, 4, 2), str(tmp_path / "log"))
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        KernelStore.prepare(folder / "store", source)
    before = two.run(os.getcwd)
    monkeypatch.chdir(here)
    two.run(os.chdir, there)
    try:
        with pytest.raises(DistributedError, match=r"4 of them, .* all machines share"):
            fill(KernelStore.open("/proc/self/cwd/store"), source, executor=two)
    finally:
        two.run(os.chdir, next(iter(before.values())))


@pytest.mark.nightly
def test_worker_of_another_version(tmp_path: Path) -> None:
    other = tmp_path / "other" / "ntkscope-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: ntkscope\nVersion: 9.9\n")
    store, source = begun(tmp_path, Grid(4, 4, 2))
    with Cluster(tmp_path, other.parent) as machines, pytest.raises(DistributedError, match=r"ntkscope is 9\.9 there"):
        fill(store, source, executor=machines.address)


class Deadly(SlowTiles):
    """Kills the process that computes one tile."""

    def tile(self, i: int, j: int) -> TileValues:
        if (i, j) == (2, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().tile(i, j)


@pytest.mark.nightly
def test_tile_that_kills_its_workers(tmp_path: Path) -> None:
    register_pickle_by_value(sys.modules[__name__])
    store, source = begun(tmp_path, Grid(8, 8, 2), kind=Deadly)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster(2) as client,
        pytest.raises(DistributedError, match=r"lost before .*\(2, 1\).*1[3-5] of 16 tiles are safe.* memory"),
    ):
        fill(store, source, executor=client)


def test_model_no_worker_can_load(two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("from oracles.slow_tiles import SlowTiles\nclass Here(SlowTiles): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    source = only_here.Here(Grid(4, 4, 2), str(tmp_path / "log"))
    store = KernelStore.prepare(tmp_path / "store", source)
    with pytest.raises(DistributedError, match=r"cannot load.*only_here"):
        fill(store, source, executor=two)
    assert two.submit(sum, [1, 2]).result(timeout=10) == 3, "the workers live on"


class Faulty(SlowTiles):
    """Computes one tile wrong."""

    def tile(self, i: int, j: int) -> TileValues:
        tile = super().tile(i, j)
        return tile if (i, j) != (1, 2) else TileValues(tile.values * torch.nan)


def test_an_error_of_a_tile_is_the_error_one_sees(two: Any, tmp_path: Path) -> None:
    register_pickle_by_value(sys.modules[__name__])
    store, source = begun(tmp_path, Grid(8, 8, 2), kind=Faulty)
    with pytest.raises(NumericalError, match=r"tile \(1, 2\)") as caught:
        fill(store, source, executor=two)
    assert "are safe" in caught.value.__notes__[0]
    assert (1, 2) in store.missing()


def edit_path(folder: str) -> None:
    """Let this process import from a folder, and forget the network it knew."""
    sys.path.insert(0, folder)
    sys.modules.pop("somebodys_network", None)


def test_a_worker_with_other_code_of_the_model_refuses(
    two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network's file is another one there: in the last line of a helper of a helper, in the kernel all the same."""
    for where in ("here", "there", "same"):
        (tmp_path / where).mkdir()
        resumed.written(tmp_path / where, resumed.TEXT["helper of the helper"] if where == "there" else ("", ""))
    monkeypatch.syspath_prepend(tmp_path / "here")
    monkeypatch.delitem(sys.modules, "somebodys_network", raising=False)
    model = importlib.import_module("somebodys_network").network()
    register_pickle_by_value(sys.modules[__name__])
    two.wait_for_workers(2)
    two.run(edit_path, str(tmp_path / "there"))
    with pytest.raises(DistributedError, match=r"would compute something else.* code of the model is") as caught:
        ns.kernel("trntk0", model, resumed.inputs(), store=tmp_path / "k", executor=two)
    assert "install the same versions" in str(caught.value)
    assert KernelStore.open(tmp_path / "k").done() == set()
    two.run(edit_path, str(tmp_path / "same"))
    found = ns.kernel("trntk0", model, resumed.inputs(), store=tmp_path / "k", executor=two)
    torch.testing.assert_close(found.dense(), ns.kernel("trntk0", model, resumed.inputs()).dense())


def raise_numerics(versions: dict[str, int]) -> None:
    """Let this process be an ntkscope whose numbers have these versions."""
    numerics.NUMERICS = versions


@pytest.mark.parametrize("kernel", ["trntk0", "infinite"])
def test_a_worker_whose_numbers_have_another_version_refuses(two: Any, tmp_path: Path, kernel: str) -> None:
    """The release is the same there; a development version may compute other numbers all the same."""

    def fill_it() -> Gram:
        if kernel == "infinite":
            net = ns.infinite.serial(ns.infinite.Dense())
            return ns.infinite.kernel(net, torch.eye(4), store=tmp_path / "k", executor=two)
        return ns.kernel("trntk0", nn.Linear(4, 2), torch.eye(4), store=tmp_path / "k", executor=two)

    torch.manual_seed(0)
    register_pickle_by_value(sys.modules[__name__])
    two.wait_for_workers(2)
    room = "infinite" if kernel == "infinite" else "tangent"
    raised = numerics.NUMERICS[room] + 1
    two.run(raise_numerics, {room: raised})
    try:
        with pytest.raises(DistributedError, match=rf"would compute something else.*numerics of {room} {raised}"):
            fill_it()
    finally:
        two.run(raise_numerics, dict(numerics.NUMERICS))
    torch.manual_seed(0)
    assert fill_it().shape == (4, 4)


class Other(SlowTiles):
    """Says it is the same and computes something else."""

    def tile(self, i: int, j: int) -> TileValues:
        tile = super().tile(i, j)
        return TileValues(tile.values * 1.5, tile.row_diagonal, tile.column_diagonal)


def test_a_worker_that_computes_another_tile_is_noticed(two: Any, tmp_path: Path) -> None:
    register_pickle_by_value(sys.modules[__name__])
    grid = Grid(12, 12, 3)
    local_bytes(tmp_path, grid)
    store = KernelStore.open(tmp_path / "local")
    store.drop(0, 0)
    with pytest.raises(StoreError, match="answers differently from the one the store was created with"):
        fill(store, Other(grid, str(tmp_path / "log")), executor=two)
    assert store.missing() == [(0, 0)]

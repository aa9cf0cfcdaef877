"""A kernel on disk over hours: filling is killed, files are damaged, the store is read and filled again, round after round.

    python -m benchmarks soak [--minutes 120] [--quick]

A round begins a store of the trace-NTK of a small network and kills, at a random moment, the Dask worker that fills it, the
process that fills it alone, or the process that has a cluster fill it. Then a few bytes of a few files are changed, or the
files cut, lengthened, removed or replaced by others; what the store says of them is compared with what was done, every number
that it still gives with a naive float64 kernel, and the refilled store, byte by byte, with one that was left alone.
The cluster's scheduler and client live in this process, whose resident memory is noted every minute (Linux). It rests
after each round, so that a soak takes about half a core.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import networks
from benchmarks.kernels.memory import MIB, settled
from benchmarks.outcome import Check, Outcome
from ntkscope.core import generator
from ntkscope.core.errors import DamagedTile, StoreError
from ntkscope.storage import DamageWarning, KernelStore
from ntkscope.storage.certified import KEY, read_certificate

MINUTES, QUICK_MINUTES = 120.0, 1.0
MEMORY = "4MiB"  # of a filling: ten tiles
INPUTS, WIDTHS = 120, (32, 64, 64, 10)
EXACT = 1e-12  # of the largest entry: two orders of sums of float64
MOST_HARMS = 4  # files damaged in a round
REST, LONGEST_REST = 0.5, 5.0  # of the seconds of a round, and seconds at most: on a busy machine rounds are long
LIMIT = 1200.0  # seconds after which a filling is said to hang: on a busy machine a worker takes minutes to start
PATIENCE = 180.0  # seconds after which another worker is started where there is none
FLAT = 1.05  # resident memory in the last quarter over that in the second, at most

Tile = tuple[int, int]


def subject() -> tuple[nn.Module, Tensor]:
    """The network and its inputs, the same in every process."""
    x = torch.randn(INPUTS, WIDTHS[0], generator=generator(0, "soak"), dtype=torch.float64)
    return networks.mlp(*WIDTHS).double().eval(), x


def filled(folder: Path, executor: Any = None) -> Tensor:
    """The kernel of the subject, from a store that is filled, or filled again."""
    model, x = subject()
    return ns.kernel("trntk0", model, x, store=folder, memory=MEMORY, executor=executor).dense()


def alone(folder: str, address: str | None) -> None:
    """`filled` in a process of its own, to be killed."""
    torch.set_num_threads(1)
    filled(Path(folder), address)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a store but the certificate, which says how long checks took."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != KEY)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# -- damage ------------------------------------------------------------------------------------------------------------


def harmed(data: bytes, other: bytes, draw: random.Random) -> tuple[str, bytes | None]:
    """How a file is damaged, and what it holds then; None where it is removed.

    >>> harmed(b"", b"xyz", random.Random(0))  # of nothing, nothing can be cut
    ('removed', None)
    """
    harm = draw.choice(("bit", "bytes", "cut", "longer", "removed", "replaced"))
    if harm == "removed" or not data:
        return "removed", None
    changed = bytearray(data)
    if harm == "bit":
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif harm == "bytes":
        start = draw.randrange(len(data))
        for place in range(start, min(len(data), start + draw.randint(1, 64))):
            changed[place] ^= draw.randint(1, 255)
    elif harm == "cut":
        del changed[draw.randrange(len(data)) :]
    elif harm == "longer" or other == data:
        return "longer", data + draw.randbytes(draw.randint(1, 64))
    else:
        return "replaced", other
    return harm, bytes(changed)


def damage(folder: Path, draw: random.Random) -> dict[str, str]:
    """Damage a few files of a store; what was done to each."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    done = {}
    for path in draw.sample(files, min(len(files), draw.randint(1, MOST_HARMS))):
        harm, data = harmed(path.read_bytes(), draw.choice(files).read_bytes() if files else b"", draw)
        if data is None:
            path.unlink()
            files.remove(path)
        else:
            path.write_bytes(data)
        done[path.relative_to(folder).as_posix()] = harm
    return done


def tile_of(key: str) -> Tile | None:
    """The tile that a file belongs to; None for documents.

    >>> tile_of("values/c/0/3"), tile_of("row_diagonal/seal/2"), tile_of("values/zarr.json")
    ((0, 3), (2, 2), None)
    """
    parts = key.split("/")
    if parts[-1].endswith(".json") or parts[-1].endswith(".part"):
        return None
    places = [int(part) for part in parts[2:]]
    return (places[0], places[-1])


# -- a soak ------------------------------------------------------------------------------------------------------------


class Soak:
    """Counts, and the rounds that raise them."""

    def __init__(self, folder: Path, client: Any, seed: int) -> None:
        self.folder, self.client, self.draw = folder, client, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.faults: list[str] = []
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["benchmarks.kernels.soak", "ntkscope.kernels", "distributed", "zarr"])
        kernel = filled(folder / "whole")
        start = time.monotonic()
        filled(folder / "again")
        self.seconds = time.monotonic() - start  # of a filling, when all that it needs is loaded
        self.whole = content(folder / "whole")
        self._judge("a store left alone", kernel)

    @cached_property
    def truth(self) -> Tensor:
        """The kernel, without any of the engine."""
        return networks.oracle_trace_ntk(*subject())

    def round(self) -> None:
        """Begin a store, kill, damage, read, fill again."""
        store = self.folder / "store"
        shutil.rmtree(store, ignore_errors=True)
        self.counts["rounds"] += 1
        self.draw.choice((self._kill_worker, self._kill_process, self._kill_client))(store)
        self._wait_for_rest()
        before = read_certificate(KernelStore.open(store).folder) if (store / "zarr.json").exists() else None
        done = damage(store, self.draw)
        self.counts["files damaged"] += len(done)
        self.kinds.update(f"{harm}, {'tile' if tile_of(key) else key}" for key, harm in done.items())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)
            noticed = self._read(store, done, before)
            executor = self.client if self.draw.random() < 0.5 else None
            try:
                kernel = self._bounded(lambda: filled(store, executor))
            except StoreError:  # what the store is of cannot be read any more: it says so, and is begun anew
                self.counts["stores refused"] += 1
                noticed |= set(done)
                shutil.rmtree(store)
                kernel = self._bounded(lambda: filled(store, executor))
        self._judge("a refilled store", kernel)
        now = content(store)
        restored = {key for key in done if now.get(key) == self.whole.get(key)}
        noticed |= {
            key for key in done if key.endswith("/zarr.json") and key in restored
        }  # written anew, if it differs
        self.counts["damage found"] += len(noticed)
        self.counts["damage mended"] += len(restored)
        self.counts["damage not found"] += len(set(done) - noticed)
        if lost := sorted(key for key in {*now, *self.whole} if now.get(key) != self.whole.get(key)):
            self.counts["files lost"] += len(lost)
            self._fault(f"{lost[0]} is not as in a store left alone")
        for key in set(done) - noticed:
            self._fault(f"{key}: {done[key]}, not found")

    # -- killing -------------------------------------------------------------------------------------------------------

    def _moment(self) -> float:
        """Seconds from the first tile to a kill."""
        return self.draw.uniform(0, self.seconds)

    def _begun(self, store: Path, over: Callable[[], bool]) -> bool:
        """Wait for the first tile; whether it came before the filling was over."""
        end = time.monotonic() + LIMIT
        while not (store / "values" / "c").exists():
            if over() or time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def _kill_worker(self, store: Path) -> None:
        """A worker dies while this process has it fill the store; another is started, and goes on."""
        self._wait_for_a_worker()
        victim = self.draw.choice(list(self.client.run(os.getpid).values()))
        over = threading.Event()

        def kill() -> None:
            if self._begun(store, over.is_set) and not over.wait(self._moment()):
                os.kill(victim, signal.SIGKILL)
                self.counts["workers killed"] += 1

        killer = threading.Thread(target=kill)
        killer.start()
        kernel = self._bounded(lambda: filled(store, self.client))
        over.set()
        killer.join()
        self._judge("a store whose worker was killed", kernel)

    def _kill_process(self, store: Path) -> None:
        self._kill(store, None)

    def _kill_client(self, store: Path) -> None:
        self._wait_for_a_worker()
        self._kill(store, self.client.scheduler.address)

    def _kill(self, store: Path, address: str | None) -> None:
        process = self.processes.Process(target=alone, args=(str(store), address))
        process.start()
        self._begun(store, lambda: not process.is_alive())
        process.join(self._moment())
        if process.exitcode is None:
            process.kill()
            self.counts["clients killed" if address else "processes killed"] += 1
        process.join(LIMIT)
        if process.exitcode not in (0, -signal.SIGKILL):
            self._fault(f"a process ended with {process.exitcode}")
        process.close()

    def _wait_for_rest(self) -> None:
        """Until no worker is at a tile of a client that was killed."""
        self._wait_for_a_worker()
        end = time.monotonic() + LIMIT
        while any(self.client.run(_running, on_error="return").values()) and time.monotonic() < end:
            time.sleep(0.1)

    def _wait_for_a_worker(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            self._start_another()
            self.client.wait_for_workers(1, timeout=LIMIT)

    def _start_another(self) -> None:
        """Dask does not always bring a killed worker back."""
        self.client.cluster.scale(len(self.client.cluster.workers) + 1)
        self.counts["workers started"] += 1

    # -- judging -------------------------------------------------------------------------------------------------------

    def _bounded(self, work: Callable[[], Tensor]) -> Tensor:
        """`work` in a thread; an error of its own, or a hang, ends the soak."""
        ended: dict[str, Any] = {}

        def run() -> None:
            try:
                ended["value"] = work()
            except BaseException as error:
                ended["error"] = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        end = time.monotonic() + LIMIT
        while thread.is_alive() and time.monotonic() < end:
            thread.join(PATIENCE)
            if thread.is_alive() and not self.client.nthreads():
                self._start_another()
        if not ended:
            raise TimeoutError(f"filling took more than {LIMIT:g} seconds")
        if "error" in ended:
            raise ended["error"]
        kernel: Tensor = ended["value"]
        return kernel

    def _read(self, folder: Path, done: dict[str, str], before: Any) -> set[str]:
        """Read what a damaged store still gives; the damaged files that it names."""
        try:
            store = KernelStore.find(folder)
        except StoreError:
            return set(done)
        if store is None:
            return set(done)
        bad = {*store.damaged(), *store.missing()}
        for i, j in store.done():
            with suppress(DamagedTile):
                self._judge(f"tile {i, j}", store.read(i, j), self.truth[store.grid.rows(i), store.grid.columns(j)])
        try:
            whole = ns.open_kernel(folder, partial=True).dense()
        except StoreError:
            pass
        else:
            self._judge("a damaged store", torch.where(whole.isnan(), self.truth, whole))
        noticed = {key for key in done if (tile := tile_of(key)) is not None and tile in bad}
        if KEY in done and read_certificate(store.folder) in (None, before):
            noticed.add(KEY)
        return noticed | {key for key in done if key.endswith(".part")}  # which nobody reads

    def _judge(self, what: str, values: Tensor, truth: Tensor | None = None) -> None:
        """Count the entries that are not the kernel's."""
        truth = self.truth if truth is None else truth
        wrong = int(((values - truth).abs() <= EXACT * self.truth.abs().max()).logical_not().sum())
        self.counts["numbers compared"] += values.numel()
        self.counts["numbers wrong"] += wrong
        if wrong:
            self._fault(f"{what} has {wrong} wrong numbers")

    def _fault(self, what: str) -> None:
        self.faults.append(f"round {self.counts['rounds']}: {what}")
        print(f"  {self.faults[-1]}", flush=True)


def _running(dask_worker: Any) -> int:
    return int(dask_worker.state.executing_count)


@contextmanager
def cluster(folder: Path) -> Iterator[Any]:
    """A client of a cluster with one worker of one thread, whose scheduler remembers little of what is over."""
    import dask
    import distributed

    short = {"distributed.admin.log-length": 1000, "distributed.admin.low-level-log-length": 1000}
    local = {"host": "127.0.0.1", "scheduler_kwargs": {"dashboard": False, "dashboard_address": "127.0.0.1:0"}}
    with (
        dask.config.set(
            {
                **short,
                "distributed.deploy.lost-worker-timeout": f"{LIMIT:g} seconds",
                "temporary-directory": str(folder),
            }
        ),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, silence_logs=50, **local) as made,
        distributed.Client(made, set_as_default=False) as client,
    ):
        yield client


def run(quick: bool = False, minutes: float | None = None, seed: int = 0) -> Iterator[Outcome]:
    """Outcomes so far, one each minute."""
    minutes = minutes if minutes is not None else QUICK_MINUTES if quick else MINUTES
    torch.set_num_threads(1)
    every = min(60.0, minutes * 60 / 12)
    with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as client:
        soak = Soak(Path(name), client, seed)
        began = noted = time.monotonic()
        memory: list[dict[str, float]] = []
        while (now := time.monotonic()) < began + 60 * minutes:
            try:
                soak.round()
            except TimeoutError as error:
                soak.counts["hangs"] += 1
                soak.faults.append(f"{error}; workers: {len(client.nthreads())}")
                break
            time.sleep(min(LONGEST_REST, REST * (time.monotonic() - now)))
            if time.monotonic() >= noted + every:
                noted = time.monotonic()
                memory.append(
                    {"minutes": (noted - began) / 60, "rounds": soak.counts["rounds"], "MiB": settled(10) / MIB}
                )
                yield outcome(soak, memory)
        yield outcome(soak, memory)


def outcome(soak: Soak, memory: list[dict[str, float]]) -> Outcome:
    counts = soak.counts
    names = (
        "rounds",
        "workers killed",
        "workers started",
        "processes killed",
        "clients killed",
        "files damaged",
        "damage found",
        "damage mended",
        "damage not found",
        "files lost",
        "stores refused",
        "numbers compared",
        "numbers wrong",
    )
    sizes = [note["MiB"] for note in memory]
    quarter = len(sizes) // 4
    growth = statistics.median(sizes[-quarter:]) / statistics.median(sizes[quarter : 2 * quarter]) if quarter else None
    row: dict[str, Any] = {name: counts[name] for name in names}
    row |= {"MiB first": sizes[0], "MiB last": sizes[-1], "minutes": memory[-1]["minutes"]} if memory else {}
    checks = [
        *(
            Check(what, "0", str(counts[what]), counts[what] == 0)
            for what in ("numbers wrong", "damage not found", "files lost", "hangs")
        ),
        Check(
            "memory, last quarter ÷ second",
            f"≤ {FLAT:g}",
            "" if growth is None else f"{growth:.3f}",
            None if growth is None else growth <= FLAT,
        ),
    ]
    details = {"memory": memory, "damage": dict(sorted(soak.kinds.items())), "faults": soak.faults[:100]}
    return Outcome("Killed, damaged and refilled", [row], checks, details=details)

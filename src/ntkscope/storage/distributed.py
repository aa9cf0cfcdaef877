"""Tiles on a Dask cluster: workers compute strips of a row of tiles and write them into the store themselves.

Dask sends the tasks to the workers, queues them, restarts them when a worker dies and moves the model between the
workers. This file only holds what one task does, and what is reported when something is lost.
"""

from __future__ import annotations

import logging
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, Literal

import torch

from ntkscope._version import package_version
from ntkscope.core import Certificate, NtkscopeError, UsageError
from ntkscope.core.machine.interrupts import noted_interrupts
from ntkscope.core.progress import Progress, counter
from ntkscope.linalg.grams.tiling import TileSource
from ntkscope.storage._zarr import optional
from ntkscope.storage.certified import add_certificate
from ntkscope.storage.chunks import Store
from ntkscope.storage.lacking import outstanding, to_check
from ntkscope.storage.worker import DistributedError, Strip, compare, compute, distributed_package, leave

LONGEST_STRIP = 8  # tiles: the features of a row are made at most once for eight tiles
SHARES = 16  # minimum strips per worker, if there are enough tiles, so that all finish at about the same time
RETRIES = 2  # of a strip whose worker reports an error, such as a network folder that was briefly unavailable
CONNECT_SECONDS = 15
PATIENCE_SECONDS = 20  # without a worker, before that is reported
VISIBLE_SECONDS = (0, 1, 4, 10, 20, 30)  # a network folder shows other machines' files within about a minute
BARREN_ROUNDS = 3  # times that all workers are lost without one more tile before that is an error


class ClusterWarning(RuntimeWarning):
    """A cluster without workers; we wait for them, since they may be queued."""


@contextmanager
def as_client(executor: Any) -> Iterator[Any]:
    """A Dask client for `executor`: None, a `dask.distributed.Client`, or a scheduler's address such as `tcp://host:8786`.

    A client that was passed in stays open; one made for an address is closed at the end.

    >>> with as_client(None) as client:
    ...     client is None
    True
    """
    if executor is None:
        yield None
        return
    distributed = distributed_package()
    if isinstance(executor, distributed.Client):
        if executor.asynchronous or executor.status != "running":
            kind = "asynchronous" if executor.asynchronous else executor.status
            raise UsageError(f"got executor= with a client that is {kind}; expected one in use: Client(cluster)")
        yield executor
        return
    if not isinstance(executor, str) or not executor.strip():
        raise UsageError(
            f"got executor={executor!r}; expected None, a dask.distributed.Client, or a scheduler's address such as"
            " 'tcp://host:8786'; for a cluster object pass Client(cluster)"
        )
    try:
        client = distributed.Client(executor, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise DistributedError(
            f"no Dask scheduler answers at {executor!r} ({error}); expected an address such as tcp://host:8786: start one"
            " with `dask scheduler` and workers with `dask worker ADDRESS`"
        ) from error
    log = logging.getLogger("distributed.client")
    try:
        yield client
    finally:
        before, log.disabled = (
            log.disabled,
            log.disabled or client.status != "running",
        )  # a loss is reported by our own error
        try:
            client.close()
        finally:
            log.disabled = before


def fill_on(
    executor: Any,
    store: Store,
    source: TileSource,
    *,
    progress: bool | Literal["auto"] = False,
    verify: bool = True,
) -> int:
    """Compute what a store lacks on a cluster's workers; returns the number of tiles computed.

    Every worker process gets the source once, builds its engine once, and writes each tile immediately, so a worker's death
    costs only its current tile. The folder of the store must be the same one on all machines. A lost scheduler is a
    `DistributedError`, and the same call resumes. Each worker computes one tile at a time with as many threads as
    Dask gave it. Before its first tile it takes the fingerprint of its own code and runs the network itself: a worker with
    another version of either is refused. What workers checked is returned with their strips and added to the store's
    certificate. If the store already has tiles, a worker recomputes one of them, as `fill` does.
    """
    with as_client(executor) as client:
        if client is None:
            raise UsageError("got executor=None; expected a dask.distributed.Client or a scheduler's address")
        todo = outstanding(store, source, verify=verify)
        chosen = to_check(store, todo)
        with counter(len(store.grid), store.parts, progress) as bar:
            bar.skip(len(store.grid) - len(todo))
            if todo or chosen:
                with noted_interrupts() as check:
                    filling = _Filling(client, store, _parcel(source, store), bar, check)
                    try:
                        filling.run(todo, chosen)
                    finally:
                        if filling.checked is not None:
                            add_certificate(store.folder, filling.checked)
                store.clear_leftovers()  # of workers that were killed while writing
    return len(todo)


def strips(tiles: Iterable[tuple[int, int]], length: int, again: Iterable[tuple[int, int]] = ()) -> list[Strip]:
    """Tiles in grid order as strips of at most `length` tiles of one row.

    >>> [(s.row, s.columns) for s in strips([(0, 0), (0, 1), (0, 2), (1, 1)], 2)]
    [(0, (0, 1)), (0, (2,)), (1, (1,))]
    """
    damaged = frozenset(again)
    found = []
    for row, members in groupby(tiles, key=lambda tile: tile[0]):
        columns = [j for _, j in members]
        for start in range(0, len(columns), length):
            part = tuple(columns[start : start + length])
            found.append(Strip(row, part, frozenset(j for j in part if (row, j) in damaged)))
    return found


# -- the client's side --------------------------------------------------------------------------------------------------


class _Filling:
    """One filling of a store: rounds of strips until no tile is missing. A second round covers the case that all
    workers that held the source were lost together, and for tasks Dask gave up because their workers died too often."""

    def __init__(self, client: Any, store: Store, parcel: bytes, bar: Progress[int], check: Callable[[], None]) -> None:
        self.client, self.store, self.parcel, self.bar, self.check = client, store, parcel, bar, check
        self.name = f"ntkscope-tiles-{uuid.uuid4().hex}"
        self.address = client.scheduler.address
        self.start = time.monotonic()
        self.before = bar.done
        self.checked: Certificate | None = None  # by the workers, in the strips that finished
        self.again: set[tuple[int, int]] = set()  # damaged tiles that have not been recomputed yet

    def run(self, todo: dict[tuple[int, int], bool], chosen: tuple[int, int] | None = None) -> None:
        """Compute every tile of `todo`, after the existing tile `chosen` was recomputed and compared."""
        barren = 0
        self.again = {tile for tile, damaged in todo.items() if damaged}
        try:
            if chosen is not None:
                self._verify(chosen)
            while todo:
                left = self._left(self._round(todo))
                self.check()
                barren = 0 if len(left) < len(todo) else barren + 1
                if barren == BARREN_ROUNDS:
                    raise DistributedError(
                        f"the workers at {self.address} were lost before another tile was done, the first missing one being"
                        f" {left[0]}; {self._safe()}. Most often a worker has less memory than the kernel's memory= needs:"
                        " give workers more (memory_limit=), or the kernel less; the workers' logs say more"
                    )
                self.bar.advance(len(self.store.grid) - len(left) - self.bar.done)
                todo = {tile: tile in self.again for tile in left}
        finally:
            if self.client.status == "running":
                with suppress(Exception):  # the tiles are what counts; the next fill clears a worker's memory too
                    self.client.run(leave, self.name, on_error="ignore")

    def _verify(self, chosen: tuple[int, int]) -> None:
        """Have one worker recompute a tile and compare it."""
        for _ in range(BARREN_ROUNDS):
            try:
                self._workers()
                parcel = self.client.scatter(self.parcel, broadcast=True, hash=False)
                future = self.client.submit(compare, chosen, name=self.name, parcel=parcel, retries=RETRIES, pure=False)
                while not future.done():
                    self.check()
                    time.sleep(0.01)
            except NtkscopeError:
                raise
            except OSError:  # as in a round
                time.sleep(1)
            else:
                if future.status == "finished":
                    return
                if future.status == "error":
                    self._raise(future.exception())
            if self.client.status != "running":
                raise self._lost()
        raise DistributedError(
            f"the workers at {self.address} were lost before tile {chosen} was computed again; {self._safe()}; the workers'"
            " logs say more"
        )

    def _round(self, todo: dict[tuple[int, int], bool]) -> bool:
        """Compute every missing tile once; returns whether all strips finished."""
        try:
            return self._strips(todo)
        except NtkscopeError:
            raise
        except OSError as error:  # the comms' errors are of this kind: the scheduler, or a worker's connection
            time.sleep(1)
            if self.client.status != "running":
                raise self._lost() from error
            return False

    def _strips(self, todo: dict[tuple[int, int], bool]) -> bool:
        distributed = distributed_package()
        workers = self._workers()
        length = max(1, min(LONGEST_STRIP, len(todo) // (SHARES * workers)))
        parts = strips(todo, length, self.again)
        parcel = self.client.scatter(self.parcel, broadcast=True, hash=False)
        name = f"{self.name}-{uuid.uuid4().hex[:8]}"
        futures = self.client.map(
            compute,
            parts,
            key=[(name, part.row, part.columns[0]) for part in parts],
            name=self.name,
            parcel=parcel,
            retries=RETRIES,
            pure=False,
        )
        part_of = dict(zip((future.key for future in futures), parts, strict=True))
        whole = True
        try:
            for future in distributed.as_completed(futures, loop=self.client.loop):
                self.check()
                if self.client.status != "running":
                    raise self._lost()
                if future.status == "finished":
                    part = part_of[future.key]
                    self._count(future)
                    self.again.difference_update((part.row, j) for j in part.columns)
                    self.bar.advance(len(part.columns))
                    rate = (self.bar.done - self.before) / (time.monotonic() - self.start)
                    self.bar.message(f"{rate:.3g} {self.store.parts} per second on {workers} workers")
                    continue
                whole = False
                if future.status == "error":
                    self._raise(future.exception())
        except BaseException:
            if self.client.status == "running":
                self.client.cancel(futures)
            raise
        return whole

    def _count(self, future: Any) -> None:
        """Add what a strip's worker checked; if that was lost with the worker, the tiles are what counts."""
        with suppress(Exception):
            checked = future.result(timeout=CONNECT_SECONDS)
            if checked is not None:
                self.checked = checked if self.checked is None else self.checked + checked

    def _workers(self) -> int:
        """The number of workers, once there is one; all must have our versions."""
        start: float | None = time.monotonic()
        while not (workers := self.client.nthreads()):
            self.check()
            if self.client.status != "running":
                raise self._lost()
            if start is not None and time.monotonic() - start > PATIENCE_SECONDS:
                start = None
                said = f"no worker is at {self.address}; waiting for one"
                self.bar.message(said)
                hint = "a LocalCluster drops one that is not back after distributed.deploy.lost-worker-timeout, 15 s by default"
                warnings.warn(f"{said}, for as long as it takes: {hint}", ClusterWarning, stacklevel=2)
            time.sleep(0.5)
        mine = _versions()
        for worker, found in self.client.get_versions(packages=list(mine))["workers"].items():
            theirs = {name: _release(found["packages"].get(name)) for name in mine}
            if theirs != mine:
                said = "; ".join(f"{n} is {theirs[n] or 'not installed'} there and {mine[n]} here" for n in mine)
                raise DistributedError(
                    f"worker {worker} cannot compute the same bits: {said}. Install the same versions for all workers"
                    f' (pip install "ntkscope[distributed]"); {self._safe()}'
                )
        return len(workers)

    def _left(self, whole: bool) -> list[tuple[int, int]]:
        """The tiles still missing; an error when workers wrote them all but they are not visible here."""
        left = self.store.missing()
        if not whole:
            absent = self.again.union(left)
            return [tile for tile in self.store.grid if tile in absent]
        for seconds in VISIBLE_SECONDS:
            self.check()
            time.sleep(seconds if left else 0)
            left = self.store.missing() if left else left
        if left:
            raise DistributedError(
                f"the workers at {self.address} wrote all tiles, but {len(left)} of them, the first {left[0]}, are not in"
                f" {self.store.url} as this machine sees it; expected one folder that all machines share, or an fsspec URL"
            )
        return left

    def _raise(self, error: BaseException) -> None:
        """Report why a strip failed, unless its workers died: then there is another round."""
        distributed = distributed_package()
        if isinstance(error, distributed.KilledWorker):
            return
        if isinstance(error, NtkscopeError):
            error.add_note(self._safe())
            raise error
        raise DistributedError(
            f"a worker at {self.address} failed: {type(error).__name__}: {error}; {self._safe()}"
        ) from error

    def _lost(self) -> DistributedError:
        return DistributedError(
            f"the scheduler at {self.address} was lost; {self._safe()}. Start a scheduler, or continue without one"
        )

    def _safe(self) -> str:
        grid = self.store.grid
        return (
            f"{len(self.store.done())} of {len(grid)} {self.store.parts} are safe in {self.store.url}, and the same command"
            " run again computes only the others"
        )


def _parcel(source: TileSource, store: Store) -> bytes:
    """What a worker needs, as bytes: a worker unpickles them inside a task, where anything missing becomes a clear error."""
    cloudpickle = optional("cloudpickle", "distributed")
    try:
        return bytes(cloudpickle.dumps((source, store)))
    except Exception as error:
        raise UsageError(
            f"the kernel cannot be sent to workers: {type(error).__name__}: {error}; expected a model and inputs that pickle"
            " (no open files, locks or generators in them)"
        ) from error


def _versions() -> dict[str, str]:
    return {"ntkscope": package_version(), "torch": _release(torch.__version__)}


def _release(found: str | None) -> str:
    """A version without its build: a machine without a GPU may send tiles to machines with one."""
    return str(found or "").partition("+")[0]

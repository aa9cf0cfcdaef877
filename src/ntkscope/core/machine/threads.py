"""The thread pool: jobs run in parallel, each computed by a single thread.

How many threads share one product decides in which order it is summed, and so its last digits. Here every sum is made by
one thread, and whole jobs are shared: the numbers do not depend on how many cores there are.

The caller may have threads of its own: `alone_with` keeps two of them from running one model at the same time, and `Together`
changes a setting of the process for as long as any of them needs it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from threadpoolctl import threadpool_limits

LOG = logging.getLogger(__name__)
Worker = TypeVar("Worker")
Job = TypeVar("Job")


@runtime_checkable
class Twinned(Protocol):
    """A worker that can be copied for another thread."""

    def twin(self: Twin) -> Twin: ...


Twin = TypeVar("Twin", bound=Twinned)


def recruit(workers: list[Twin], wanted: int) -> None:
    """Add copies of the first worker until there are enough, or no more can be made."""
    while len(workers) < wanted:
        try:
            workers.append(workers[0].twin())
        except Exception as error:  # a model that cannot be copied, for whatever reason its own methods have
            LOG.info("%d threads instead of %d: no more copies of the model (%r)", len(workers), wanted, error)
            return


def share(
    workers: Sequence[Worker], jobs: Iterable[Job], work: Callable[[Worker, Job], None], *, threads_each: int = 1
) -> None:
    """`work(worker, job)` for every job, with whichever worker is free; the first error, by order of jobs, is raised.

    `threads_each`: for when the last digits do not matter and there are more cores than workers.

    >>> done = []
    >>> share(["a", "b"], range(3), lambda worker, job: done.append(job))
    >>> sorted(done)
    [0, 1, 2]
    """
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def do(job: Job) -> None:
        worker = free.get()
        try:
            work(worker, job)
        finally:
            free.put(worker)

    with (
        torch_threads(torch.get_num_threads()),  # what a thread sets is also what new threads start with
        ThreadPoolExecutor(len(workers), initializer=_join, initargs=(caller(), threads_each)) as pool,
    ):
        try:
            for doing in [pool.submit(copy_context().run, do, job) for job in jobs]:
                doing.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def spread(jobs: Iterable[Job], work: Callable[[Job], None], device: torch.device) -> None:
    """`work(job)` for every job: on a CPU in as many threads as PyTorch uses, each computing alone, elsewhere one by one.

    >>> done = []
    >>> spread(range(3), done.append, torch.device("cpu"))
    >>> sorted(done)
    [0, 1, 2]
    """
    waiting = list(jobs)
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(waiting) < threads:
        for job in waiting:
            work(job)
    else:
        share(range(threads), waiting, lambda _, job: work(job))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set PyTorch's number of threads inside, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_LOCAL = threading.local()
_BUSY: dict[int, list[int]] = {}  # by address of an object: who is alone with it, how many times over
_FREED = threading.Condition()


def caller() -> int:
    """The thread this one works for: the one that called the package, for itself and for those of its pool."""
    return getattr(_LOCAL, "caller", threading.get_ident())


def _join(chief: int, threads: int) -> None:
    _LOCAL.caller = chief
    torch.set_num_threads(threads)


@contextmanager
def alone_with(*things: object) -> Iterator[None]:
    """While open, no other caller is alone with any of these; it waits until none is. A caller may open it again inside.

    >>> with alone_with("model"), alone_with("model"):
    ...     list(map(len, _BUSY.values()))
    [2]
    """
    keys, me = {id(thing) for thing in things}, caller()
    with _FREED:
        _FREED.wait_for(lambda: all(_BUSY.get(key, [me])[0] == me for key in keys))
        for key in keys:
            _BUSY.setdefault(key, [me, 0])[1] += 1
    try:
        yield
    finally:
        with _FREED:
            for key in keys:
                _BUSY[key][1] -= 1
                if not _BUSY[key][1]:
                    del _BUSY[key]
            _FREED.notify_all()


class Together:
    """A setting of the whole process, for several callers at once: the first one makes it, the last one takes it back.

    >>> quiet = Together(lambda: torch_threads(1))
    >>> with quiet, quiet:
    ...     torch.get_num_threads()
    1
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self._inside = make, threading.RLock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._made = self._make()
                self._made.__enter__()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._made.__exit__(None, None, None)


def single_blas() -> Together:
    """While open, products and decompositions of NumPy and SciPy are computed by one thread.

    The threads of a decomposition wait for each other thousands of times. Where other processes compute, each wait may last
    until the next turn on a core: two threads were 30 times slower than one.

    >>> with single_blas():
    ...     pass
    """
    return _SINGLE


_SINGLE = Together(lambda: threadpool_limits(1, user_api="blas"))

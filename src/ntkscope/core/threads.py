"""The thread pool: jobs run in parallel, each computed by a single thread.

How many threads share one product decides in which order it is summed, and so its last digits. Here every sum is made by
one thread, and whole jobs are shared: the numbers do not depend on how many cores there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol, TypeVar, runtime_checkable

import torch

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
        ThreadPoolExecutor(len(workers), initializer=torch.set_num_threads, initargs=(threads_each,)) as pool,
    ):
        try:
            for doing in [pool.submit(do, job) for job in jobs]:
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

"""A crew: workers that do jobs side by side, each in one thread that computes alone.

How many threads share one product decides in which order it is summed, and so its last digits. Here every sum is made by
one thread, and it is whole jobs that are shared: the numbers do not depend on how many cores there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol, TypeVar, runtime_checkable

import torch

Worker = TypeVar("Worker")
Job = TypeVar("Job")


@runtime_checkable
class Twinned(Protocol):
    """What can be had again for another thread."""

    def twin(self: Twin) -> Twin: ...


Twin = TypeVar("Twin", bound=Twinned)


def recruit(crew: list[Twin], wanted: int) -> None:
    """Add twins of the first until there are as many as wanted, or none can be made."""
    while len(crew) < wanted:
        try:
            crew.append(crew[0].twin())
        except Exception:  # a model that cannot be copied, for whatever reason its own methods have
            return


def share(
    workers: Sequence[Worker], jobs: Iterable[Job], work: Callable[[Worker, Job], None], *, threads_each: int = 1
) -> None:
    """`work(worker, job)` for every job, with whichever worker is free; the first error, by order of jobs, is raised.

    `threads_each`: where last digits do not matter and there are more cores than workers.

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

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(len(workers), initializer=torch.set_num_threads, initargs=(threads_each,)) as pool:
            try:
                for doing in [pool.submit(do, job) for job in jobs]:
                    doing.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)  # the threads' own setting is also what new threads start with

"""Tiles on all cores: one thread a tile, so that threads meet at the end of a kernel and not at the end of every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

T = TypeVar("T")


def spread(jobs: Iterable[T], work: Callable[[T], None], device: torch.device) -> Iterator[None]:
    """Do `work` for every job and yield after each: on a CPU in as many threads as PyTorch uses, elsewhere in turn.

    Each thread computes alone; PyTorch's number of threads is as before when all is done.

    >>> done = []
    >>> len(list(spread(range(3), done.append, torch.device("cpu")))), sorted(done)
    (3, [0, 1, 2])
    """
    waiting = list(jobs)
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(waiting) < threads:
        for job in waiting:
            work(job)
            yield
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for done in as_completed([pool.submit(work, job) for job in waiting]):
                done.result()
                yield
    finally:
        torch.set_num_threads(threads)  # the threads' own setting is also what new threads start with

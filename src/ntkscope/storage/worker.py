"""A Dask worker's side of filling a store: what one task does, and what a worker checks before its first tile."""

from __future__ import annotations

import platform
import socket
import threading
from dataclasses import dataclass
from typing import Any

from ntkscope.core import Certificate, NtkscopeError
from ntkscope.core.errors import StoreError
from ntkscope.core.machine.threads import torch_threads
from ntkscope.linalg.grams.tiling import Answering, Certifying, TileSource, run
from ntkscope.storage._zarr import optional
from ntkscope.storage.chunks import Store


class DistributedError(NtkscopeError, RuntimeError):
    """A cluster that cannot be reached, was lost or cannot do the work; the message says what is safe."""


@dataclass(frozen=True)
class Strip:
    """Consecutive tiles `(row, ·)` that one task computes; those in `again` even if their file exists."""

    row: int
    columns: tuple[int, ...]
    again: frozenset[int] = frozenset()


def distributed_package() -> Any:
    try:
        return optional("distributed", "distributed")
    except NtkscopeError as error:
        raise DistributedError(
            'executor= needs the packages dask and distributed; pip install "ntkscope[distributed]"'
        ) from error


@dataclass
class _Post:
    """What a worker process keeps from one strip to the next: the source with its engine, and the store."""

    source: TileSource
    store: Store


_POSTS: dict[str, _Post] = {}  # at most one: the engine of another fill is dropped
_ENDED: set[str] = set()  # fills that are over, also for a worker that is only starting its first strip
_ONE_AT_A_TIME = threading.Lock()  # a source computes one tile at a time, with all of the worker's threads


def compute(strip: Strip, *, name: str, parcel: bytes) -> Certificate | None:
    """Compute a strip's missing tiles and write each immediately; returns what was checked meanwhile."""
    worker = distributed_package().get_worker()
    with _ONE_AT_A_TIME, torch_threads(worker.state.nthreads):
        post = _post(name, parcel, worker.address)
        before = _checked(post.source)
        for j in strip.columns:
            if name in _ENDED:
                break
            run(post.source, post.store, {(strip.row, j): j in strip.again})
        now = _checked(post.source)
        if name in _ENDED:
            _POSTS.pop(name, None)
    return None if before is None or now is None else now.since(before)


def _checked(source: TileSource) -> Certificate | None:
    return source.certificate() if isinstance(source, Certifying) else None


def compare(tile: tuple[int, int], *, name: str, parcel: bytes) -> None:
    """Recompute one existing tile, and compare."""
    worker = distributed_package().get_worker()
    with _ONE_AT_A_TIME, torch_threads(worker.state.nthreads):
        post = _post(name, parcel, worker.address)
        post.store.compare_tile(*tile, post.source.tile(*tile), getattr(post.source, "device", "cpu"))


def _post(name: str, parcel: bytes, address: str) -> _Post:
    post = _POSTS.get(name)
    if post is None:
        where = f"worker {address} on {socket.gethostname()} (Python {platform.python_version()})"
        _POSTS.clear()
        try:
            source, store = optional("cloudpickle", "distributed").loads(parcel)
        except Exception as error:
            raise DistributedError(
                f"{where} cannot load the model and inputs: {type(error).__name__}: {error}; expected the modules that define"
                " them to be importable there: install them for all workers, or start these with the same PYTHONPATH"
            ) from error
        try:
            seen = store.again()
        except NtkscopeError as error:
            raise DistributedError(f"{where} cannot read the store: {error}") from error
        if seen is None:
            raise DistributedError(
                f"{where} sees no store at {store.url}; expected one folder that all machines share, under the same"
                " path, or an fsspec URL such as s3://bucket/kernel"
            )
        try:
            seen.require(source)
            seen.compare_answers(source.answers() if isinstance(source, Answering) else None)
        except StoreError as error:
            raise DistributedError(
                f"{where} would compute something else: {error}; expected the same code of ntkscope and of the model there as"
                " here: install the same versions for all workers"
            ) from error
        post = _POSTS[name] = _Post(source, seen)
    return post


def leave(name: str) -> None:
    """End a fill on one worker: its current strip stops after the current tile, and model and engine are released."""
    _ENDED.add(name)
    _POSTS.pop(name, None)

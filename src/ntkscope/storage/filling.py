"""Filling a store: compute the missing tiles, write each as soon as it is done, and record what was checked."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from ntkscope.core import Certificate
from ntkscope.core.identity import Answers, drawn
from ntkscope.core.progress import counter
from ntkscope.linalg.tiling import Certifying, Grid, TileSink, TileSource, TileValues, run
from ntkscope.storage._files import Folder
from ntkscope.storage.certified import add_certificate


class DamageWarning(RuntimeWarning):
    """Tiles of a store were damaged and are recomputed."""


@runtime_checkable
class Store(TileSink, Protocol):
    """Tiles on disk, of a kernel or of features; it can be pickled, and holds no open files."""

    parts: str
    """What its tiles are called: "tiles" or "chunks"."""

    @property
    def url(self) -> str: ...

    @property
    def folder(self) -> Folder: ...

    @property
    def grid(self) -> Grid: ...

    def again(self) -> Store | None:
        """The store currently at the same place, as a worker sees it."""
        ...

    def require(self, source: TileSource) -> None: ...

    def compare_answers(self, now: Answers | None) -> None: ...

    def compare_tile(self, i: int, j: int, tile: TileValues, device: torch.device | str = "cpu") -> None: ...

    def done(self) -> set[tuple[int, int]]: ...

    def missing(self) -> list[tuple[int, int]]: ...

    def damaged(self) -> list[tuple[int, int]]: ...

    def without_diagonals(self) -> Mapping[str, list[tuple[int, int]]]:
        """Fields of tiles that are entirely missing, and the tiles that would have provided them."""
        ...

    def said(self, tile: tuple[int, int]) -> str:
        """A tile's name in a message."""
        ...

    def clear_leftovers(self) -> None: ...


def fill(
    store: Store,
    source: TileSource,
    *,
    executor: Any = None,
    progress: bool | Literal["auto"] = False,
    verify: bool = True,
) -> int:
    """Compute what a store lacks; returns the number of tiles computed.

    Each tile is written atomically as soon as it is done, so a run killed at any moment resumes where it was.
    Existing tiles are read and checked first (`verify`); damaged ones are named in a `DamageWarning` and
    recomputed. If there are tiles, one of them, drawn at random each time, is recomputed and compared: a source that
    gives a different tile is refused, so that tiles of two networks never mix. `executor`: None for this process, or a
    `dask.distributed.Client`. Memory: what the source needs. What the source checked meanwhile is added to the store's
    certificate.
    """
    store.require(source)
    if executor is not None:
        from ntkscope.storage.distributed import fill_on

        return int(fill_on(executor, store, source, progress=progress, verify=verify))
    todo = outstanding(store, source, verify=verify)
    device = getattr(source, "device", "cpu")
    before = source.certificate() if isinstance(source, Certifying) else Certificate()
    chosen = to_check(store, todo)
    if chosen is not None:
        store.compare_tile(*chosen, source.tile(*chosen), device)
    computed, start = 0, time.monotonic()
    with counter(len(store.grid), store.parts, progress) as bar:
        bar.skip(len(store.grid) - len(todo))

        def after(new: bool) -> None:
            nonlocal computed
            computed += new
            bar.message(f"{computed / (time.monotonic() - start):.3g} {store.parts} per second")
            bar.advance()

        try:
            run(source, store, todo, after)
        finally:
            if computed and isinstance(source, Certifying):
                add_certificate(store.folder, source.certificate().since(before))
    return computed


def to_check(store: Store, todo: Mapping[tuple[int, int], bool]) -> tuple[int, int] | None:
    """One of the existing tiles, to be recomputed and compared; None if there is none."""
    there = sorted(tile for tile in store.done() if tile not in todo)
    return drawn(there) if there else None


def outstanding(store: Store, source: TileSource, *, verify: bool = True) -> dict[tuple[int, int], bool]:
    """The tiles to compute in grid order, each with whether it exists but is damaged; removes leftovers of killed writers."""
    store.clear_leftovers()
    damaged = set(store.damaged()) | _lost_diagonals(store, source) if verify else set()
    if damaged:
        named = ", ".join(map(store.said, sorted(damaged)[:10]))
        more = f" and {len(damaged) - 10} more" if len(damaged) > 10 else ""
        warnings.warn(
            f"{store.url}: {store.parts} {named}{more} are damaged (not the bytes that were written) and are computed again",
            DamageWarning,
            stacklevel=3,
        )
    wanted = damaged.union(store.missing())
    return {tile: tile in damaged for tile in store.grid if tile in wanted}


def _lost_diagonals(store: Store, source: TileSource) -> set[tuple[int, int]]:
    """The tiles that provide diagonals that are entirely missing, if the source knows them; then computes one tile."""
    without = store.without_diagonals()
    if not without:
        return set()
    first = source.tile(0, 0)
    return {tile for field, tiles in without.items() if getattr(first, field) is not None for tile in tiles}

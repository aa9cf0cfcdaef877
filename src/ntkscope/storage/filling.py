"""Filling a store: compute the tiles that are missing, keep each as soon as it is there."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any, Literal

from ntkscope.core.identity import drawn
from ntkscope.core.progress import counter
from ntkscope.linalg.tiling import TileSource
from ntkscope.storage.store import KernelStore


class DamageWarning(RuntimeWarning):
    """Tiles of a store were damaged and are computed again."""


def fill(
    store: KernelStore,
    source: TileSource,
    *,
    executor: Any = None,
    progress: bool | Literal["auto"] = False,
    verify: bool = True,
) -> int:
    """Compute what a store lacks; how many tiles that were.

    Tiles go to the disk one by one, whole or not at all, so a run killed at any moment goes on from where it was.
    Tiles that are there are read and checked first (`verify`), and the damaged are named in a `DamageWarning` and
    computed again. Where there are tiles, one of them, drawn anew each time, is computed again and compared: a source that
    gives another tile is refused, so that tiles of two networks never mix. `executor`: None for this process, or a
    `dask.distributed.Client`. Memory: what the source needs.
    """
    store.require(source)
    if executor is not None:
        from ntkscope.storage.distributed import fill_on

        return int(fill_on(executor, store, source, progress=progress, verify=verify))
    todo = outstanding(store, source, verify=verify)
    device = getattr(source, "device", "cpu")
    chosen = to_check(store, todo)
    if chosen is not None:
        store.compare_tile(*chosen, source.tile(*chosen), device)
    with counter(len(store.grid), "tiles", progress) as bar:
        bar.skip(len(store.grid) - len(todo))
        computed, start = 0, time.monotonic()
        for (i, j), damaged in todo.items():
            if damaged or not store.has(i, j):  # another process may have brought it meanwhile
                store.write(i, j, source.tile(i, j), device)
                computed += 1
                bar.message(f"{computed / (time.monotonic() - start):.3g} tiles a second")
            bar.advance()
    return computed


def to_check(store: KernelStore, todo: Mapping[tuple[int, int], bool]) -> tuple[int, int] | None:
    """One of the tiles that are there, to be computed again and compared; None where there is none."""
    there = sorted(tile for tile in store.done() if tile not in todo)
    return drawn(there) if there else None


def outstanding(store: KernelStore, source: TileSource, *, verify: bool = True) -> dict[tuple[int, int], bool]:
    """The tiles to compute in grid order, each with whether it is there but damaged; leftovers of killed writers go."""
    store.clear_leftovers()
    damaged = set(store.damaged()) | _lost_diagonals(store, source) if verify else set()
    if damaged:
        named = ", ".join(f"{tile}" for tile in sorted(damaged)[:10])
        more = f" and {len(damaged) - 10} more" if len(damaged) > 10 else ""
        warnings.warn(
            f"{store.url}: tiles {named}{more} are damaged (not the bytes that were written) and are computed again",
            DamageWarning,
            stacklevel=3,
        )
    wanted = damaged.union(store.missing())
    return {tile: tile in damaged for tile in store.grid if tile in wanted}


def _lost_diagonals(store: KernelStore, source: TileSource) -> set[tuple[int, int]]:
    """The tiles that bring diagonals of which nothing is there, where the source does say them; computes one tile then."""
    without = store.without_diagonals()
    if not without:
        return set()
    first = source.tile(0, 0)
    return {tile for field, tiles in without.items() if getattr(first, field) is not None for tile in tiles}

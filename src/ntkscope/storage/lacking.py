"""What a store lacks: which tiles are missing or damaged, and which one of the others is computed again to compare."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch

from ntkscope.core.identity import Answers, drawn
from ntkscope.linalg.grams.tiling import Grid, TileSink, TileSource, TileValues
from ntkscope.storage._files import Folder


class DamageWarning(RuntimeWarning):
    """Tiles of a store were damaged and are computed again."""


@runtime_checkable
class Store(TileSink, Protocol):
    """Tiles on disk, of a kernel or of features; it pickles, and holds nothing open."""

    parts: str
    """What its tiles are called: "tiles" or "chunks"."""

    @property
    def url(self) -> str: ...

    @property
    def folder(self) -> Folder: ...

    @property
    def grid(self) -> Grid: ...

    def again(self) -> Store | None:
        """The store that is at the same place now, as a worker sees it."""
        ...

    def require(self, source: TileSource) -> None: ...

    def compare_answers(self, now: Answers | None) -> None: ...

    def compare_tile(self, i: int, j: int, tile: TileValues, device: torch.device | str = "cpu") -> None: ...

    def done(self) -> set[tuple[int, int]]: ...

    def missing(self) -> list[tuple[int, int]]: ...

    def damaged(self) -> list[tuple[int, int]]: ...

    def without_diagonals(self) -> Mapping[str, list[tuple[int, int]]]:
        """Fields of tiles of which nothing is there, and the tiles that would have brought them."""
        ...

    def said(self, tile: tuple[int, int]) -> str:
        """A tile's name in a message."""
        ...

    def clear_leftovers(self) -> None: ...


def to_check(store: Store, todo: Mapping[tuple[int, int], bool]) -> tuple[int, int] | None:
    """One of the tiles that are there, to be computed again and compared; None where there is none."""
    there = sorted(tile for tile in store.done() if tile not in todo)
    return drawn(there) if there else None


def outstanding(store: Store, source: TileSource, *, verify: bool = True) -> dict[tuple[int, int], bool]:
    """The tiles to compute in grid order, each with whether it is there but damaged; leftovers of killed writers go."""
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
    """The tiles that bring diagonals of which nothing is there, where the source does say them; computes one tile then."""
    without = store.without_diagonals()
    if not without:
        return set()
    first = source.tile(0, 0)
    return {tile for field, tiles in without.items() if getattr(first, field) is not None for tile in tiles}

"""What a store lacks: which tiles are missing or damaged, and which one of the others is computed again to compare."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from ntkscope.core.identity import drawn
from ntkscope.linalg.grams.tiling import TileSource
from ntkscope.storage.chunks import Store


class DamageWarning(RuntimeWarning):
    """Tiles of a store were damaged and are computed again.

    Examples:
        >>> import warnings
        >>> from pathlib import Path
        >>> K = ns.kernel("trntk0", model, x, store=folder)
        >>> tile = next(file for file in Path(folder).rglob("c/0/0"))
        >>> _ = tile.write_bytes(bytes(tile.stat().st_size))
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     again = ns.kernel("trntk0", model, x, store=folder)
        >>> [w.category.__name__ for w in caught], again.dense().equal(K.dense())
        (['DamageWarning'], True)
    """


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

"""Filling a store: compute the tiles that are missing, keep each as soon as it is there, and say what was checked."""

from __future__ import annotations

import time
from typing import Any, Literal

from ntkscope.core import Certificate
from ntkscope.core.progress import counter
from ntkscope.linalg.tiling import Certifying, TileSource, run
from ntkscope.storage.certified import add_certificate
from ntkscope.storage.distributed import fill_on
from ntkscope.storage.lacking import Store, outstanding, to_check


def fill(
    store: Store,
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
    `dask.distributed.Client`. Memory: what the source needs. What the source checked meanwhile is added to the store's
    certificate.
    """
    store.require(source)
    if executor is not None:
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
            bar.message(f"{computed / (time.monotonic() - start):.3g} {store.parts} a second")
            bar.advance()

        try:
            run(source, store, todo, after)
        finally:
            if computed and isinstance(source, Certifying):
                add_certificate(store.folder, source.certificate().since(before))
    return computed

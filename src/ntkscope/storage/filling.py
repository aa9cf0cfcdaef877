"""Filling a store: compute the missing tiles, write each as soon as it is done, and record what was checked."""

from __future__ import annotations

import time
from typing import Any, Literal

from ntkscope.core import Certificate
from ntkscope.core.progress import counter
from ntkscope.linalg.grams.tiling import Certifying, TileSource, run
from ntkscope.storage.certified import add_certificate
from ntkscope.storage.chunks import Store
from ntkscope.storage.distributed import fill_on
from ntkscope.storage.lacking import outstanding, to_check


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

    Examples:
        >>> from types import SimpleNamespace
        >>> from ntkscope.linalg import Grid, TileValues
        >>> source = SimpleNamespace(grid=Grid(4, 4, 2), dtype=torch.float32, labels={"name": "ones"}, fingerprint={"x": "0"})
        >>> source.tile = lambda i, j: TileValues(torch.ones(2, 2))
        >>> store = ns.storage.KernelStore.prepare(folder, source)
        >>> fill(store, source), fill(store, source)
        (4, 0)
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
            bar.message(f"{computed / (time.monotonic() - start):.3g} {store.parts} per second")
            bar.advance()

        try:
            run(source, store, todo, after)
        finally:
            if computed and isinstance(source, Certifying):
                add_certificate(store.folder, source.certificate().since(before))
    return computed

"""The registry of data sets; each file of this room registers one loader."""

from __future__ import annotations

from typing import Any, Protocol

from ntkscope.core import Registry, Split


class Loader(Protocol):
    """Makes a `Split`; the same seed and options give the same bytes. `root` is where real data lie."""

    def __call__(self, *, root: Any = None, seed: int = 0, **options: object) -> Split: ...


DATASETS: Registry[Loader] = Registry("data set", check=True)

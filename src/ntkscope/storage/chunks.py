"""The chunks of a store of features as tiles (k, 0), so that the code that fills a kernel store fills it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from ntkscope.core.identity import Answers
from ntkscope.linalg.grams.tiling import Grid, TileSource, TileValues
from ntkscope.storage._files import Folder
from ntkscope.storage.feature_store import FeatureStore
from ntkscope.storage.kernel_store import KernelStore


@dataclass(frozen=True)
class Chunks:
    """A `FeatureStore` that is filled tile by tile; methods as of `KernelStore`."""

    store: FeatureStore
    parts = "chunks"

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def folder(self) -> Folder:
        return self.store.folder

    @property
    def grid(self) -> Grid:
        return self.store.grid

    def again(self) -> Chunks | None:
        found = FeatureStore.find(self.url)
        return None if found is None else Chunks(found)

    def require(self, source: TileSource) -> None:
        self.store.require(source)

    def compare_answers(self, now: Answers | None) -> None:
        self.store.compare_answers(now)

    def compare_tile(self, i: int, j: int, tile: TileValues, device: torch.device | str = "cpu") -> None:
        self.store.compare_chunk(i, tile.values, device)

    def done(self) -> set[tuple[int, int]]:
        return {(k, 0) for k in self.store.done()}

    def missing(self) -> list[tuple[int, int]]:
        return [(k, 0) for k in self.store.missing()]

    def damaged(self) -> list[tuple[int, int]]:
        return [(k, 0) for k in self.store.damaged()]

    def without_diagonals(self) -> dict[str, list[tuple[int, int]]]:
        return {}

    def has(self, i: int, j: int) -> bool:
        return self.store.has(i)

    def write(self, i: int, j: int, tile: TileValues, device: torch.device | str = "cpu") -> None:
        self.store.write(i, tile.values, device)

    def said(self, tile: tuple[int, int]) -> str:
        return str(tile[0])

    def clear_leftovers(self) -> None:
        self.store.clear_leftovers()


Store: TypeAlias = KernelStore | Chunks
"""Tiles on disk, of a kernel or of features; it pickles, and holds nothing open."""

"""The Gram of a store against the contract, and what it promises beyond it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import Tensor

from contracts.gram import GramContract
from ntkscope.linalg import Gram, Grid, KernelStore, TiledGram, TileValues, fill


@dataclass(frozen=True)
class Products:
    """Tiles of features' inner products."""

    left: Tensor
    right: Tensor | None = None
    size: int = 3
    labels: dict[str, Any] = field(default_factory=dict)
    fingerprint: dict[str, str] = field(default_factory=lambda: {"features": "a"})

    @property
    def grid(self) -> Grid:
        other = self.left if self.right is None else self.right
        return Grid(len(self.left), len(other), self.size, self.right is None)

    @property
    def dtype(self) -> torch.dtype:
        return self.left.dtype

    def tile(self, i: int, j: int) -> TileValues:
        a = self.left[self.grid.rows(i)]
        b = (self.left if self.right is None else self.right)[self.grid.columns(j)]
        values = a @ b.T
        if self.right is None and i == j:
            values = (values + values.T) / 2
        return TileValues(values, a.double().square().sum(1), b.double().square().sum(1))


class TestTiled(GramContract):
    """In memory, so that hundreds of tiny stores need not reach a disk; `test_store` has the same on one."""

    @pytest.fixture(autouse=True)
    def _urls(self, tmp_path: Path) -> Iterator[None]:
        self.urls = (f"memory:/{tmp_path}/{k}" for k in itertools.count())
        yield
        fsspec.filesystem("memory").rm(str(tmp_path), recursive=True)

    def make(self, left: Tensor, right: Tensor | None = None, **labels: Any) -> Gram:
        """An empty one has no tiles to store: it is a choice of nothing from one that has."""
        padded = [
            None if side is None else side if len(side) else torch.ones(1, side.shape[1]).to(side)
            for side in (left, right)
        ]
        source = Products(padded[0], padded[1], size=max(2, len(padded[0]) // 3))
        store = KernelStore.prepare(next(self.urls), source)
        fill(store, source)
        if len(left) and (right is None or len(right)):
            return TiledGram(store, **labels)
        return TiledGram(store)[: len(left), : len(left if right is None else right)]

"""The Gram of a store against the contract, and what it promises beyond it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import Tensor

from contracts.gram import GramContract
from ntkscope.linalg import Gram, KernelStore, TiledGram, fill
from oracles.tiles import Products


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

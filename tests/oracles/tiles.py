"""Tile sources for the tests of stores: inner products of features, and the exact kernel of a small network."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import ntkscope as ns
from ntkscope.linalg import Grid, TileValues


@dataclass(frozen=True)
class Products:
    """Inner products of features; without `right`, symmetric."""

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


@dataclass(frozen=True)
class NetworkTiles:
    """The trace-NTK of a small convolutional network on handwritten digits, each tile computed on its own."""

    n: int = 64
    size: int = 8
    seed: int = 0

    @property
    def grid(self) -> Grid:
        return Grid(self.n, self.n, self.size, symmetric=True)

    dtype = torch.float32

    @property
    def labels(self) -> dict[str, Any]:
        return {"name": "trntk", "rows": "samples", "outputs": 1, "meta": {"outputs": 10}}

    @property
    def fingerprint(self) -> dict[str, str]:
        return {"model": f"small_cnn, seed {self.seed}", "inputs": f"digits, the first {self.n}"}

    @cached_property
    def _work(self) -> tuple[torch.nn.Module, Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = ns.models.build("small_cnn", image_size=8, classes=10)
        return model.eval(), ns.data.load("digits").train.x[: self.n]

    def tile(self, i: int, j: int) -> TileValues:
        model, x = self._work
        rows = x[self.grid.rows(i)]
        gram = ns.kernel("trntk", model, rows, None if i == j else x[self.grid.columns(j)])
        return TileValues(gram.dense().to(self.dtype), gram.row_diagonal, gram.column_diagonal)

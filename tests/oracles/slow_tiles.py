"""A tile source of plain arithmetic, slow on purpose, that writes down who built its engine and who computed which tile."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ntkscope.linalg.grams.tiling import Grid, TileValues


@dataclass
class SlowTiles:
    """`cos(x_i · x'_j)` of drawn vectors; each tile takes `seconds`, and a line `tile i j pid` goes to the file `log`."""

    grid: Grid
    log: str
    seconds: float = 0.0
    seed: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def labels(self) -> Mapping[str, Any]:
        return {"name": "slow", "rows": "samples", "outputs": 1, "meta": {}}

    @property
    def fingerprint(self) -> Mapping[str, str]:
        return {"seed": str(self.seed)}

    def tile(self, i: int, j: int) -> TileValues:
        if "_sides" not in vars(self):
            self._note("engine")
            draw = torch.Generator().manual_seed(self.seed)
            rows, columns = (torch.randn(n, 7, generator=draw) for n in (self.grid.n, self.grid.m))
            self._sides = (rows, rows if self.grid.symmetric else columns)
        self._note(f"start {i} {j}")
        rows, columns = self._sides[0][self.grid.rows(i)], self._sides[1][self.grid.columns(j)]
        time.sleep(self.seconds)
        values = (rows[:, None] * columns[None, :]).sum(-1).cos().to(self.dtype)
        own = torch.ones(len(rows), dtype=torch.float64), torch.ones(len(columns), dtype=torch.float64)
        self._note(f"tile {i} {j}")
        return TileValues((values + values.T) / 2 if self.grid.symmetric and i == j else values, *own)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_sides"}

    def _note(self, what: str) -> None:
        with open(self.log, "a") as handle:  # short lines appended by several processes do not mix
            handle.write(f"{what} {os.getpid()}\n")


def notes(log: str | Path, kind: str) -> list[list[int]]:
    """The numbers of the lines of one kind: `[i, j, pid]` for tile and start, `[pid]` for engine."""
    lines = Path(log).read_text().splitlines() if Path(log).exists() else []
    return [list(map(int, line.split()[1:])) for line in lines if line.startswith(kind)]

"""Assembly: tiles combined into one matrix in memory, with the diagonals and planes they carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ntkscope.core.progress import counter
from ntkscope.linalg.grams.tiling import Computing, Grid, Place, TileValues, run


@dataclass(frozen=True, eq=False)
class Assembly:
    """A matrix that tiles are written into (both triangles of a symmetric one); the sink of kernels in memory."""

    grid: Grid
    values: Tensor
    planes: Mapping[str, Tensor]
    advance: Callable[[int], None]
    sides: dict[str, Tensor] = field(default_factory=dict)
    """The diagonals of the row and of the column inputs, in float64, where tiles carry them."""

    @classmethod
    def of(cls, source: Computing, planes: Mapping[str, torch.dtype], advance: Callable[[int], None]) -> Assembly:
        """Zeros, on the source's device, with the further `planes`."""
        shape, device = (source.grid.n, source.grid.m), getattr(source, "device", "cpu")
        further = {name: torch.zeros(shape, dtype=dtype, device=device) for name, dtype in planes.items()}
        return cls(source.grid, torch.zeros(shape, dtype=source.dtype, device=device), further, advance)

    def has(self, i: int, j: int) -> bool:
        return False

    def place(self, i: int, j: int) -> Place:
        """The part of the matrix that tile (i, j) is computed into."""
        at = self.grid.computed(i, j)
        return Place(self.values[at], {name: plane[at] for name, plane in self.planes.items()}, self.advance)

    def write(self, i: int, j: int, tile: TileValues, device: torch.device | str = "cpu") -> None:
        """Finish a tile already written in place: store its mirror image and what it carries."""
        rows, columns = self.grid.computed(i, j)
        for matrix in (self.values, *self.planes.values()):
            if self.grid.symmetric and columns.stop > rows.stop:
                right = slice(max(columns.start, rows.stop), columns.stop)
                matrix[right, rows] = matrix[rows, right].T
        for name, part, at, length in (
            ("rows", tile.row_diagonal, rows, self.grid.n),
            ("columns", tile.column_diagonal, columns, self.grid.m),
        ):
            if part is not None and not self.grid.symmetric:
                if name not in self.sides:
                    self.sides[name] = torch.zeros(length, dtype=torch.float64, device=self.values.device)
                self.sides[name][at] = part.to(self.sides[name])

    @property
    def row_diagonal(self) -> Tensor | None:
        return self.values.diagonal().double() if self.grid.symmetric else self.sides.get("rows")

    @property
    def column_diagonal(self) -> Tensor | None:
        return self.values.diagonal().double() if self.grid.symmetric else self.sides.get("columns")


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """A matrix of `n` rows of `width` numbers each, `block` of them at a time, by a function of the rows."""

    compute: Callable[[slice], Tensor]
    n: int
    width: int
    block: int
    dtype: torch.dtype
    device: torch.device

    @property
    def grid(self) -> Grid:
        return Grid(self.n, self.width, self.block, across=self.width)

    def tile(self, i: int, j: int, place: Place | None = None) -> TileValues:
        made = self.compute(self.grid.rows(i))
        if place is None:
            return TileValues(made)
        place.values.copy_(made)
        place.advance(len(made))
        return TileValues(place.values)

    def stacked(self, label: str, progress: bool = False) -> Tensor:
        """All rows, (n, width)."""
        return assemble(self, total=self.n, label=label, progress=progress).values


def assemble(
    source: Computing,
    *,
    planes: Mapping[str, torch.dtype] | None = None,
    total: int,
    label: str,
    progress: bool | Literal["auto"] = False,
) -> Assembly:
    """The matrix of a source in memory, on the source's device, with the further `planes` that are requested.

    Progress counts what the source reports, up to `total`.
    """
    with counter(total, label, enabled=progress) as bar:
        made = Assembly.of(source, planes or {}, bar.advance)
        run(source, made, dict.fromkeys(source.grid, False))
    return made

"""Tiles: a kernel matrix cut into squares that can be computed, kept and read one by one.

Who computes tiles (`TileSource`) and who keeps them (`store`) meet here, and know nothing else of each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.identity import Answers


@dataclass(frozen=True)
class Grid:
    """An (n, m) matrix in tiles of `size` × `size`, the last ones smaller; a symmetric one keeps its upper triangle.

    >>> grid = Grid(5, 5, 2, symmetric=True)
    >>> list(grid), grid.rows(2), len(grid)
    ([(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)], slice(4, 5, None), 6)
    """

    n: int
    m: int
    size: int
    symmetric: bool = False

    def __post_init__(self) -> None:
        if min(self.n, self.m, self.size) < 1 or (self.symmetric and self.n != self.m):
            raise UsageError(
                f"{self} came; expected at least one row, column and entry a tile, and as many rows as columns when"
                " symmetric"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """How many tiles there are down and across."""
        return -(-self.n // self.size), -(-self.m // self.size)

    def rows(self, i: int) -> slice:
        """The matrix rows of the tiles `(i, ·)`."""
        return slice(i * self.size, min(self.n, (i + 1) * self.size))

    def columns(self, j: int) -> slice:
        """The matrix columns of the tiles `(·, j)`."""
        return slice(j * self.size, min(self.m, (j + 1) * self.size))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """All tiles, row after row: neighbours share the row's inputs."""
        down, across = self.shape
        return ((i, j) for i in range(down) for j in range(i if self.symmetric else 0, across))

    def __len__(self) -> int:
        down, across = self.shape
        return down * (down + 1) // 2 if self.symmetric else down * across


@dataclass(frozen=True)
class TileValues:
    """One tile, and `k(x, x)` in float64 of its row and of its column inputs where the tile's maker knows them.

    A tile on the diagonal of a symmetric kernel is exactly symmetric and carries its own diagonal.
    """

    values: Float[Tensor, "h w"]
    row_diagonal: Float[Tensor, " h"] | None = None
    column_diagonal: Float[Tensor, " w"] | None = None


@runtime_checkable
class TileSource(Protocol):
    """Computes any tile of one kernel: the same bits for the same tile, in any order, in any process.

    It travels to other processes by pickle, so what it builds for its work (engines, features of the row it is at) is
    left out of the pickle and made again when first needed. Consecutive tiles of one row are the quick order.
    """

    @property
    def grid(self) -> Grid: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def labels(self) -> Mapping[str, Any]:
        """`name`, `rows`, `outputs` and `meta` of the Gram, JSON all of them."""
        ...

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What the numbers depend on, by name: model, inputs, options, code version; two runs that differ never mix."""
        ...

    def tile(self, i: int, j: int) -> TileValues: ...


@runtime_checkable
class Answering(Protocol):
    """A source whose network can be asked directly: a store keeps what it answers to a few items when it is begun."""

    def answers(self) -> Answers: ...

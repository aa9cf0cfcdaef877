"""Tiles: a matrix cut into pieces that can be computed, stored and read one by one.

What computes tiles (`TileSource`) and what keeps them (`TileSink`: a matrix in memory, a store on disk) meet here, and know
nothing else about each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Certificate, UsageError
from ntkscope.core.checked import Count
from ntkscope.core.identity import Answers


@dataclass(frozen=True)
class Grid:
    """An (n, m) matrix in tiles of `size` × `size`, the last ones smaller; a symmetric one keeps its upper triangle.

    `across`: columns of a tile where they are not as many as its rows. Of a tile that crosses the diagonal of a symmetric
    matrix, the columns from its own rows on are computed.

    Examples:
        >>> grid = Grid(5, 5, 2, symmetric=True)
        >>> list(grid), grid.rows(2), len(grid)
        ([(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)], slice(4, 5, None), 6)
    """

    n: Count
    m: Count
    size: Count
    symmetric: bool = False
    across: Count | None = None

    def __post_init__(self) -> None:
        if self.symmetric and self.n != self.m:
            raise UsageError(f"got {self}; expected as many rows as columns when symmetric")

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.size if self.across is None else self.across

    @property
    def shape(self) -> tuple[int, int]:
        """How many tiles there are down and across."""
        return -(-self.n // self.size), -(-self.m // self.width)

    def rows(self, i: int) -> slice:
        """The matrix rows of the tiles `(i, ·)`."""
        return slice(i * self.size, min(self.n, (i + 1) * self.size))

    def columns(self, j: int) -> slice:
        """The matrix columns of the tiles `(·, j)`."""
        return slice(j * self.width, min(self.m, (j + 1) * self.width))

    def computed(self, i: int, j: int) -> tuple[slice, slice]:
        """The matrix rows and columns of tile (i, j), of a symmetric matrix the columns from the tile's own rows on.

        Examples:
            >>> Grid(5, 5, 2, symmetric=True, across=5).computed(1, 0)
            (slice(2, 4, None), slice(2, 5, None))
        """
        rows, columns = self.rows(i), self.columns(j)
        return rows, slice(max(columns.start, rows.start), columns.stop) if self.symmetric else columns

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """All tiles, row after row: neighbours share the row's inputs."""
        down, across = self.shape
        return ((i, j) for i in range(down) for j in range(self._first(i), across))

    def path(self) -> Iterator[tuple[int, int]]:
        """All tiles, row after row, each row beginning where the last one ended: the columns of one tile are rows or columns of
        the next, which need not be computed again.

        Examples:
            >>> list(Grid(3, 3, 1, symmetric=True).path()), list(Grid(2, 2, 1).path())
            ([(0, 0), (0, 2), (0, 1), (1, 1), (1, 2), (2, 2)], [(0, 0), (0, 1), (1, 1), (1, 0)])
        """
        down, across = self.shape
        for i in range(down):
            first = self._first(i)
            if self.symmetric:
                yield i, first
                yield from ((i, j) for j in range(across - 1, first, -1))
            else:
                yield from ((i, j) for j in (range(across) if i % 2 == 0 else range(across - 1, -1, -1)))

    def __len__(self) -> int:
        down, across = self.shape
        return sum(across - self._first(i) for i in range(down)) if self.symmetric else down * across

    def _first(self, i: int) -> int:
        """The first tile of row i, of a symmetric matrix the one that the diagonal enters."""
        return i * self.size // self.width if self.symmetric else 0


@dataclass(frozen=True)
class TileValues:
    """One tile, and `k(x, x)` in float64 of its row and of its column inputs, where known.

    A tile on the diagonal of a symmetric kernel is exactly symmetric and carries its own diagonal. `planes`: further
    matrices of the same inputs, by name; a store keeps none.

    Examples:
        >>> tile = TileValues(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), row_diagonal=torch.tensor([2.0, 2.0]))
        >>> tile.values.diagonal().equal(tile.row_diagonal), tile.column_diagonal
        (True, None)
    """

    values: Float[Tensor, "h w"]
    row_diagonal: Float[Tensor, " h"] | None = None
    column_diagonal: Float[Tensor, " w"] | None = None
    planes: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tile is written to: zeros in memory for its values and for every further plane that is requested.

    `advance` is called with the number of pairs of inputs done.
    """

    values: Float[Tensor, "h w"]
    planes: Mapping[str, Tensor] = field(default_factory=dict)
    advance: Callable[[int], None] = lambda count: None


@runtime_checkable
class Computing(Protocol):
    """Computes any tile of one matrix; enough for matrices kept in memory."""

    @property
    def grid(self) -> Grid: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def tile(self, i: int, j: int) -> TileValues: ...


@runtime_checkable
class TileSource(Computing, Protocol):
    """Computes any tile of one kernel for a store: the same bits for the same tile, in any order, in any process.

    It is pickled to other processes, so what it builds for its work (engines, features of the current row) is
    left out of the pickle and rebuilt when first needed. `Grid.path` is the fastest order.
    """

    @property
    def labels(self) -> Mapping[str, Any]:
        """`name`, `rows`, `outputs` and `meta` of the Gram, JSON all of them."""
        ...

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What the numbers depend on, by name: model, inputs, options, code version; two runs that differ never mix."""
        ...


@runtime_checkable
class TileSink(Protocol):
    """Keeps tiles: a matrix in memory, a store on disk."""

    def has(self, i: int, j: int) -> bool: ...

    def write(self, i: int, j: int, tile: TileValues, device: torch.device | str = "cpu") -> None: ...


def run(
    source: Computing,
    sink: TileSink,
    todo: Mapping[tuple[int, int], bool],
    after: Callable[[bool], None] = lambda computed: None,
) -> int:
    """Compute every missing tile of `todo` (true: even if present) and keep each immediately; returns how many there were.

    Tiles come in the grid's quick order (`Grid.path`). A sink with a `place` for a tile has it written there. `after` is called
    after every tile, with whether it was computed.
    """
    device, place = getattr(source, "device", "cpu"), getattr(sink, "place", None)
    count = 0
    for i, j in source.grid.path():
        if (i, j) not in todo:
            continue
        again = todo[i, j]
        computed = again or not sink.has(i, j)  # another process may have written it meanwhile
        if computed:
            tile = source.tile(i, j) if place is None else source.tile(i, j, place(i, j))  # type: ignore[call-arg]
            sink.write(i, j, tile, device)
            count += 1
        after(computed)
    return count


@runtime_checkable
class Certifying(Protocol):
    """A source that checks what it computes."""

    def certificate(self) -> Certificate:
        """What this process has checked so far."""
        ...


@runtime_checkable
class Answering(Protocol):
    """A source whose network can be called directly: a store keeps its outputs for a few items when it is created."""

    def answers(self) -> Answers: ...

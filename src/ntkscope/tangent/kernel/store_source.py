"""Sources of what a network's kernels are stored from: how to make the makers of features again, in any process.

A tile's bits are a matter of the tile alone: blocks begin where the tile begins and are as long as the store's cut says,
one thread computes each, and nothing is carried from one tile to the next but the features of the rows, which are those it
would compute again. (On another kind of processor, or with another PyTorch, last digits differ.)
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import add, contains
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from ntkscope.core import Certificate
from ntkscope.core.model.copies import duplicate
from ntkscope.linalg.grams.tiling import Grid, TileValues
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.certify.fallback import Attempts, Fallback
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.kernel.plan import Cut
from ntkscope.tangent.kernel.products import Maker
from ntkscope.tangent.kernel.tiles import Tiles
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject, quiet
from ntkscope.tangent.trace.probed import probed


@dataclass(frozen=True, eq=False)
class Recipe(ABC):
    """How to make the maker again, in another process: the model and where it is computed."""

    model: nn.Module
    dtype: torch.dtype | None
    device: torch.device | str | None

    @abstractmethod
    def make(self, sample: Batch, fallback: Fallback) -> Maker:
        """A maker that was probed on `sample` and avoids what `fallback` says."""

    def travelling(self, device: torch.device) -> Recipe:
        """The same with a model on the CPU, to be computed on `device` where it arrives."""
        if device.type == "cpu":
            return self
        return replace(self, model=duplicate(self.model).cpu(), device=str(device))


@dataclass(frozen=True, eq=False)
class TangentRecipe(Recipe):
    """An engine for the named parameters and the chosen outputs."""

    names: frozenset[str]
    heads: Heads
    full: bool
    precision: str
    certify: str | bool = "every"

    def make(self, sample: Batch, fallback: Fallback) -> Engine:
        chosen = functools.partial(contains, self.names)
        subject = Subject(self.model, params=chosen, dtype=self.dtype, device=self.device)
        method = Precision(self.precision, subject.dtype)
        return Engine(
            subject, sample, self.heads, full=self.full, precision=method, fallback=fallback, certify=self.certify
        )


Made = TypeVar("Made", Engine, Tiles)


class NetworkSource(ABC, Generic[Made]):
    """A `TileSource` of what a network gives, made again from its recipe wherever it arrives.

    Where a check fails, a tile is computed once more on a slower path. It pickles without what it built, with model and
    inputs on the CPU.
    """

    def __init__(
        self,
        recipe: Recipe,
        x1: Batch,
        x2: Batch | None,
        *,
        grid: Grid,
        dtype: torch.dtype,
        device: torch.device,
        labels: Mapping[str, Any],
        fingerprint: Mapping[str, str],
    ) -> None:
        self.recipe, self.x1, self.x2 = recipe, x1, x2
        self.grid, self.dtype, self.device = grid, dtype, device
        self.labels, self.fingerprint = labels, fingerprint
        self._begin()

    def _begin(self) -> None:
        self._made: dict[Fallback, Made] = {}  # by what they avoid, which nearly always is nothing
        self._paths: dict[int, Fallback] = {}
        self._lock = threading.Lock()
        self._seconds = 0.0

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        cpu = [None if x is None else x.map(lambda t: t.detach().cpu()) for x in (self.x1, self.x2)]
        return kept | {"recipe": self.recipe.travelling(self.device), "x1": cpu[0], "x2": cpu[1]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @abstractmethod
    def _make(self, maker: Maker) -> Made:
        """What computes tiles, from the recipe's maker."""

    @abstractmethod
    def _compute(self, made: Made, i: int, j: int, fallback: Fallback) -> TileValues:
        """Tile (i, j)."""

    def tile(self, i: int, j: int) -> TileValues:
        """Tile (i, j) and `k(x, x)` of its inputs; parameters used in new ways by these inputs take the func path."""
        with quiet(self.device, self.recipe.model), self._lock, reproducible(self.device), self._clock():
            attempts = Attempts(self._paths.get(i))
            while True:
                with attempts:
                    made = self._made_for(attempts.fallback)
                    try:
                        return self._compute(made, i, j, attempts.fallback)
                    finally:
                        attempts.threads = made.threads

    def _made_for(self, fallback: Fallback) -> Made:
        if fallback not in self._made:
            self._made[fallback] = self._make(self.recipe.make(probed(self.x1, self.x2), fallback))
        return self._made[fallback]

    @property
    def seconds(self) -> float:
        """Time spent on tiles in this process."""
        return self._seconds

    @contextlib.contextmanager
    def _clock(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began

    def coverage(self) -> Coverage | None:
        """What this process did for every parameter, the seconds of all threads added up; None before its first tile."""
        found = [one for one in (made.coverage() for made in self._made.values()) if one is not None]
        return functools.reduce(add, found) if found else None

    def certificate(self) -> Certificate:
        """What this process checked."""
        return functools.reduce(add, (made.certificate() for made in self._made.values()), Certificate())


class FeatureTiles(NetworkSource[Tiles]):
    """Tiles of feature products, times `scale`; consecutive tiles of one row are the quick order.

    `memory` bounds what a tile takes besides model and inputs: as many blocks are worked on at once as fit into it, and as
    there are threads.
    """

    def __init__(
        self,
        recipe: Recipe,
        x1: Batch,
        x2: Batch | None,
        cut: Cut,
        maker: Maker,
        *,
        memory: int,
        labels: Mapping[str, Any],
        fingerprint: Mapping[str, str],
        scale: float = 1.0,
    ) -> None:
        self.cut, self.memory, self.scale, self.x1, self.x2 = cut, memory, scale, x1, x2
        tiles = self._make(maker)
        grid, dtype, device = tiles.grid, tiles.dtype, tiles.device
        super().__init__(recipe, x1, x2, grid=grid, dtype=dtype, device=device, labels=labels, fingerprint=fingerprint)
        self._made[Fallback()] = tiles

    def _make(self, maker: Maker) -> Tiles:
        cut, groups = self.cut, maker.groups(self.cut.heads)
        made = {"block": cut.block, "workspace": cut.workspace, "forming": cut.forming}
        return Tiles(groups, self.x1, self.x2, cut.size, **made, repeatable=True)

    def _compute(self, made: Tiles, i: int, j: int, fallback: Fallback) -> TileValues:
        for other in self._made.values():
            if other is not made:
                other.forget()
        threads = torch.get_num_threads() if self.device.type == "cpu" and not fallback.alone else 1
        maker = made.groups[0][0]
        made.staff(self.cut.workers(maker.footprint, self.memory, threads))
        with maker.precision.context():
            made.hold(i)
            self._paths.setdefault(i, fallback)  # what its own blocks ask for, not what a column asked for later
            tile = made.tile(i, j)
        values = (tile.values if self.scale == 1.0 else tile.values.mul_(self.scale)).cpu()
        if self.x2 is None:
            diagonal = values.diagonal().double() if i == j else None
            return TileValues(values, diagonal, diagonal)
        both = tile.row_diagonal, tile.column_diagonal
        row, column = (None if side is None else (side * self.scale).cpu() for side in both)
        return TileValues(values, row, column)


@contextlib.contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Convolutions on a GPU by algorithms that repeat their sums; PyTorch's own settings come back afterwards."""
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before

"""Tiles of a kernel that is a product of features: those of the tile's rows stay, its columns pass by in blocks.

A tile's bits are a matter of the tile alone: blocks begin where the tile begins and are as long as the store's cut says,
one thread computes each, and nothing is carried from one tile to the next but the features of the rows, which are those it
would compute again. (On another kind of processor, or with another PyTorch, last digits differ.)
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add, contains
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ntkscope.core import Certificate, NtkscopeError
from ntkscope.linalg.tiling import Grid, TileValues
from ntkscope.tangent.audit import PathChanged
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.contraction import (
    Features,
    Maker,
    block_products,
    cut,
    flat,
    hold_block,
    passing,
    ranges,
    write,
)
from ntkscope.tangent.coverage import Coverage
from ntkscope.tangent.crew import recruit, share
from ntkscope.tangent.cut import Cut
from ntkscope.tangent.engine import Detour, Engine, Heads, probed
from ntkscope.tangent.plan import Footprint
from ntkscope.tangent.precision import Precision
from ntkscope.tangent.subject import Subject, quiet


@runtime_checkable
class TileMaker(Maker, Protocol):
    """A maker of features that can be cut into tiles and shared among threads."""

    @property
    def footprint(self) -> Footprint: ...

    def twin(self) -> TileMaker: ...

    def check_finite(self, values: Tensor, x: Batch) -> None: ...

    def coverage(self) -> Coverage | None: ...

    def certificate(self) -> Certificate: ...


@dataclass(frozen=True, eq=False)
class Recipe(ABC):
    """How to make the maker again, in another process: the model and where it is computed."""

    model: nn.Module
    dtype: torch.dtype | None
    device: torch.device | str | None

    @abstractmethod
    def make(self, sample: Batch, detour: Detour) -> TileMaker:
        """A maker that was probed on `sample` and avoids what `detour` says."""

    def travelling(self, device: torch.device) -> Recipe:
        """The same with a model on the CPU, to be computed on `device` where it arrives."""
        if device.type == "cpu":
            return self
        return replace(self, model=copy.deepcopy(self.model).cpu(), device=str(device))


@dataclass(frozen=True, eq=False)
class TangentRecipe(Recipe):
    """An engine for the named parameters and the chosen outputs."""

    names: frozenset[str]
    heads: Heads
    full: bool
    precision: str
    certify: str | bool = "every"

    def make(self, sample: Batch, detour: Detour) -> Engine:
        chosen = functools.partial(contains, self.names)
        subject = Subject(self.model, params=chosen, dtype=self.dtype, device=self.device)
        road = Precision(self.precision, subject.dtype)
        return Engine(subject, sample, self.heads, full=self.full, precision=road, detour=detour, certify=self.certify)


@dataclass(frozen=True, eq=False)
class Row:
    """The features of one row of tiles, and the self products (n, heads) where the two sides differ."""

    number: int
    detour: Detour
    held: Features
    side: Tensor | None


class FeatureTiles:
    """A `TileSource` of feature products, times `scale`; consecutive tiles of one row are the quick order.

    `memory` bounds what a tile takes besides model and inputs: as many blocks are worked on at once as fit into it, and as
    there are threads. It pickles without what it built, with model and inputs on the CPU.
    """

    def __init__(
        self,
        recipe: Recipe,
        x1: Batch,
        x2: Batch | None,
        cut: Cut,
        maker: TileMaker,
        *,
        memory: int,
        labels: Mapping[str, Any],
        fingerprint: Mapping[str, str],
        scale: float = 1.0,
    ) -> None:
        self.recipe, self.x1, self.x2, self.cut = recipe, x1, x2, cut
        self.memory, self.scale = memory, scale
        self.labels, self.fingerprint = labels, fingerprint
        self.heads = maker.width if maker.full else 1
        self.dtype: torch.dtype = maker.dtype
        self.device = maker.device
        n, m = len(x1) * self.heads, len(x1 if x2 is None else x2) * self.heads
        self.grid = Grid(n, m, cut.size * self.heads, symmetric=x2 is None)
        self._begin({Detour(): [maker]})

    def _begin(self, crews: dict[Detour, list[TileMaker]]) -> None:
        self._crews = crews  # by what they avoid, which nearly always is nothing
        self._row: Row | None = None
        self._paths: dict[int, Detour] = {}
        self._lock = threading.Lock()
        self._seconds = 0.0

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        cpu = [None if x is None else x.map(lambda t: t.detach().cpu()) for x in (self.x1, self.x2)]
        return kept | {"recipe": self.recipe.travelling(self.device), "x1": cpu[0], "x2": cpu[1]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin({})

    def tile(self, i: int, j: int) -> TileValues:
        """Tile (i, j) and `k(x, x)` of its inputs; parameters used in new ways by these inputs take the func road."""
        with self._lock, quiet(self.device), _reproducible(self.device), self._clock():
            detour = self._paths.get(i, Detour())
            while True:
                crew = self._crew(detour)
                try:
                    with crew[0].precision.context():
                        return self._tile(crew, i, j, detour)
                except PathChanged as change:
                    detour = detour.after(change, len(crew))

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
        made = [maker.coverage() for crew in self._crews.values() for maker in crew]
        found = [one for one in made if one is not None]
        return functools.reduce(add, found) if found else None

    def certificate(self) -> Certificate:
        """What this process checked."""
        made = [maker.certificate() for crew in self._crews.values() for maker in crew]
        return functools.reduce(add, made, Certificate())

    def _crew(self, detour: Detour) -> list[TileMaker]:
        """As many makers as threads and memory allow, one a thread."""
        crew = self._crews.setdefault(detour, [])
        if not crew:
            crew.append(self.recipe.make(probed(self.x1, self.x2), detour))
        threads = torch.get_num_threads() if self.device.type == "cpu" and not detour.alone else 1
        wanted = self.cut.workers(crew[0].footprint, self.memory, threads)
        recruit(crew, wanted)
        return crew[: max(1, wanted)]

    def _tile(self, crew: Sequence[TileMaker], i: int, j: int, detour: Detour) -> TileValues:
        row = self._held(crew, i, detour)
        rows, columns = self._samples(self.grid.rows(i)), self._samples(self.grid.columns(j))
        n, m = rows.stop - rows.start, columns.stop - columns.start
        others = (self.x1 if self.x2 is None else self.x2)[columns]
        own = self.x2 is None and i == j
        values = torch.empty(n * self.heads, m * self.heads, dtype=self.dtype, device=self.device)
        side = None if self.x2 is None else torch.zeros(m, crew[0].width, dtype=torch.float64, device=self.device)

        def work(maker: TileMaker, at: range) -> None:
            column = cut(row.held, at) if own else passing(maker, others, at, side)
            height = at.stop if own else n
            total = block_products(maker, row.held, column, height, len(at), self.cut.workspace)
            with maker.clock("writing"):
                write(values, total, 0, at.start * self.heads, symmetric=own)

        blocks = list(ranges(0, m, self.cut.block))
        self._share(crew, blocks[::-1] if own else blocks, work)  # of the diagonal's, the last are the longest
        crew[0].check_finite(values, self.x1[rows])
        if self.scale != 1.0:
            values.mul_(self.scale)
        values = values.cpu()
        if self.x2 is None:
            diagonal = values.diagonal().double() if own else None
            return TileValues(values, diagonal, diagonal)
        assert row.side is not None
        assert side is not None
        return TileValues(values, *(flat(s * self.scale, crew[0].full).cpu() for s in (row.side, side)))

    def _held(self, crew: Sequence[TileMaker], i: int, detour: Detour) -> Row:
        """The features of row i, which are kept until another row is asked for."""
        if self._row is None or (self._row.number, self._row.detour) != (i, detour):
            self._row = None  # makes room
            x = self.x1[self._samples(self.grid.rows(i))]
            held: Features = {}
            side = None
            if self.x2 is not None:
                side = torch.zeros(len(x), crew[0].width, dtype=torch.float64, device=self.device)
            blocks = list(ranges(0, len(x), self.cut.block))
            self._share(crew, blocks, lambda maker, at: hold_block(maker, held, x, at, side))
            self._paths.setdefault(i, detour)  # what its own blocks ask for, not what a column asked for later
            self._row = Row(i, detour, held, side)
        return self._row

    def _share(self, crew: Sequence[TileMaker], blocks: Sequence[range], work: Any) -> None:
        """All blocks, also when some find parameters used in new ways: which ones is said of all of them together."""
        changed: list[PathChanged] = []

        def watched(maker: TileMaker, at: range) -> None:
            try:
                work(maker, at)
            except PathChanged as change:
                changed.append(change)

        if self.device.type == "cpu":
            try:
                share(crew, blocks, watched)
            except (NtkscopeError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # of the model's own code: threads may have disturbed each other
                if len(crew) == 1:
                    raise
                raise PathChanged(set(), suspect=True) from error
        else:
            for at in blocks:
                watched(crew[0], at)
        if changed:
            names = {name for change in changed for name in change.names}
            suspect = all(change.suspect for change in changed)
            raise PathChanged(names, suspect=suspect, refusal=changed[0].refusal)

    def _samples(self, rows: slice) -> slice:
        return slice(rows.start // self.heads, rows.stop // self.heads)


@contextlib.contextmanager
def _reproducible(device: torch.device) -> Iterator[None]:
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

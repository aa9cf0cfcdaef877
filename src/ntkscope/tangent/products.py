"""Products: exact inner products of parameter gradients between two sets of inputs, formed as one matrix in memory.

Features of some samples stay (the residents) while blocks of the others pass by; each block is harvested once per group
of residents, on a CPU by several threads, each with blocks of its own. With one set of inputs only one triangle is
computed. Sites accumulate in float64. Where the heads are too many to be held at once, they are taken in groups: a trace is
a sum over them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import add

import torch
from torch import Tensor

from ntkscope.core import Certificate, MemoryBudgetError, NtkscopeError
from ntkscope.core.progress import Progress, counter
from ntkscope.tangent.audit import PathChanged
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.contraction import Column, Features, block_products, cut, flat, hold_block, passing, ranges, write
from ntkscope.tangent.coverage import Coverage
from ntkscope.tangent.crew import recruit, share
from ntkscope.tangent.engine import Engine, Engines, Heads, probed
from ntkscope.tangent.pieces import Piece
from ntkscope.tangent.plan import Plan
from ntkscope.tangent.precision import Precision

FEW = 16  # residents below which heads are taken in smaller groups


@dataclass
class Products:
    """What a run gives: the products, the self products of both sides, what each parameter did."""

    values: Tensor
    row_diagonal: Tensor
    column_diagonal: Tensor
    coverage: Coverage
    certificate: Certificate
    outputs: int = 1  # how many outputs were chosen
    contributions: dict[str, Tensor] = field(default_factory=dict)
    plan: Plan | None = None
    squares: Tensor | None = None  # of every head's products, summed: what a sketch of outputs says its error with

    @property
    def turned(self) -> Products:
        """The same with rows and columns exchanged."""
        return replace(
            self,
            values=self.values.T,
            row_diagonal=self.column_diagonal,
            column_diagonal=self.row_diagonal,
            contributions={name: part.T for name, part in self.contributions.items()},
            squares=None if self.squares is None else self.squares.T,
        )

    def plus(self, other: Products) -> Products:
        """The sum over both groups of heads."""
        for name, part in other.contributions.items():
            self.contributions[name] += part
        if self.squares is not None and other.squares is not None:
            self.squares += other.squares
        return replace(
            self,
            values=self.values.add_(other.values),
            row_diagonal=self.row_diagonal + other.row_diagonal,
            column_diagonal=self.column_diagonal + other.column_diagonal,
            coverage=self.coverage + other.coverage,
            certificate=self.certificate + other.certificate,
        )


def products(
    engines: Engines,
    x1: Batch,
    x2: Batch | None,
    heads: Heads,
    *,
    full: bool = False,
    precision: str = "exact",
    memory: int = 2**31,
    per_layer: bool = False,
    progress: bool = False,
    profile: bool = False,
) -> Products:
    """`<g_k(x), g_l(x')>` for all samples: summed over k = l, or all pairs (`full`).

    A model that uses a parameter differently for later inputs than for the probed ones starts again with that parameter
    on a slower road.
    """
    road = Precision(precision, engines.subject.dtype)

    def work(engine: Engine) -> Products:
        groups = head_groups(engine, x1, x2, memory, per_layer)
        made: Products | None = None
        for part in groups:
            new = _run(part, x1, x2, memory, per_layer, progress, extra=0 if len(groups) == 1 else 1)
            made = new if made is None else made.plus(new)
        assert made is not None
        return made

    with road.context():
        return engines.run(work, probed(x1, x2), heads, full=full, precision=road, profile=profile)


def head_groups(engine: Engine, x1: Batch, x2: Batch | None, memory: int, per_layer: bool) -> list[Engine]:
    """The engine itself, or several for groups of its heads: as many at once as leave room for all, or some, residents."""
    n, m = len(x1), None if x2 is None else len(x2)
    side = min(n, m or n)
    kept = _copies(engine, per_layer)
    size, best = engine.width, 0
    while True:
        part = engine if size == engine.width else engine.part(0, size)
        try:
            if part.plan(n, m, memory, kept=kept + (size < engine.width), threads=1).resident >= min(side, FEW):
                best = size
                break
            best = best or size
        except MemoryBudgetError:
            if size == 1 or engine.full:
                raise
        if size == 1 or engine.full:
            break
        size = -(-size // 2)
    if best == engine.width:
        return [engine]
    return [engine.part(at, min(engine.width, at + best)) for at in range(0, engine.width, best)]


def _copies(engine: Engine, per_layer: bool) -> int:
    """How many matrices of the result's size are held."""
    names = {piece.name for piece in engine.pieces} if per_layer else ()
    return 1 + len(names) + 2 * (engine.heads.sketch is not None)


def _run(
    engine: Engine, x1: Batch, x2: Batch | None, memory: int, per_layer: bool, progress: bool, extra: int = 0
) -> Products:
    if x2 is not None and len(x2) < len(x1):  # the smaller side stays
        return _run(engine, x2, x1, memory, per_layer, progress, extra).turned
    subject, width = engine.subject, engine.width
    block = width if engine.full else 1
    n, m = len(x1), len(x1 if x2 is None else x2)
    names = sorted({piece.name for piece in engine.pieces}) if per_layer else []
    kept = _copies(engine, per_layer) + extra
    plan = engine.plan(n, None if x2 is None else m, memory, kept=kept)
    crew = [engine]
    recruit(crew, plan.workers)
    if len(crew) < plan.workers:
        plan = engine.plan(n, None if x2 is None else m, memory, kept=kept, threads=len(crew))
        crew = crew[: plan.workers]
    engine.threads = len(crew)
    values = torch.zeros(n * block, m * block, dtype=subject.dtype, device=subject.device)
    result = _Result(values, {name: torch.zeros_like(values) for name in names})
    if engine.heads.sketch is not None:
        result.squares = torch.zeros(n, m, dtype=torch.float64, device=subject.device)
    sides = [torch.zeros(n, width, dtype=torch.float64, device=subject.device) for _ in range(1 if x2 is None else 2)]
    if x2 is not None:
        sides[1] = torch.zeros(m, width, dtype=torch.float64, device=subject.device)
    total = sum(len(rows) * len(cols) for rows, cols in _tiles(n, None if x2 is None else m, plan))
    began = time.perf_counter()
    with counter(total, "kernel", enabled=progress) as bar:
        for rows in ranges(0, n, plan.resident):
            _residents(crew, x1, x2, rows, plan, result, sides, bar)
    coverage = functools.reduce(add, [one.coverage() for one in crew])
    certificate = functools.reduce(add, [one.certificate() for one in crew])
    if len(crew) > 1:
        factor = (time.perf_counter() - began) / max(1e-9, sum(coverage.stages.values()))
        coverage = coverage.times(factor)
        certificate = replace(certificate, seconds=certificate.seconds * factor)
    engine.check_finite(values, x1)
    rows_self = values.diagonal().double() if x2 is None else flat(sides[0], engine.full)
    columns_self = rows_self if x2 is None else flat(sides[1], engine.full)
    return Products(
        values, rows_self, columns_self, coverage, certificate, engine.chosen, result.parts, plan, result.squares
    )


@dataclass
class _Result:
    """Matrices that tiles are written into: the products, those of every parameter, the squares of every head's."""

    values: Tensor
    parts: dict[str, Tensor]
    squares: Tensor | None = None


def _residents(
    crew: list[Engine],
    x1: Batch,
    x2: Batch | None,
    rows: range,
    plan: Plan,
    result: _Result,
    sides: list[Tensor],
    bar: Progress[int],
) -> None:
    """One group of residents with all that pass by: themselves and those after them; or all of `x2`."""
    held: Features = {}
    inside = x1[rows.start : rows.stop]
    side = None if x2 is None else sides[0][rows.start : rows.stop]
    _each(crew, ranges(0, len(inside), plan.block), lambda maker, at: hold_block(maker, held, inside, at, side))
    others, first = (x1, rows.stop) if x2 is None else (x2, 0)
    new = sides[1] if x2 is not None and rows.start == 0 else None
    lock = threading.Lock()

    def work(maker: Engine, at: range) -> None:
        own = x2 is None and at.stop <= rows.stop
        column = (
            cut(held, range(at.start - rows.start, at.stop - rows.start)) if own else passing(maker, others, at, new)
        )
        _tile(maker, result, held, rows, at, column, plan, symmetric=x2 is None)
        with lock:
            bar.advance(len(rows) * len(at))

    own = list(ranges(rows.start, rows.stop, plan.block)) if x2 is None else []
    _each(crew, [*own[::-1], *ranges(first, len(others), plan.block)], work)  # of their own, the last are the longest


def _each(crew: list[Engine], blocks: Iterable[range], work: Callable[[Engine, range], None]) -> None:
    """`work` on every block: by one engine in this thread, or by several side by side."""
    if len(crew) > 1:
        try:
            share(crew, blocks, work, threads_each=max(1, torch.get_num_threads() // len(crew)))
        except (NtkscopeError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of the model's own code: threads may have disturbed each other
            raise PathChanged(set(), suspect=True) from error
        return
    for at in blocks:
        work(crew[0], at)


def _tile(
    engine: Engine,
    result: _Result,
    held: Features,
    rows: range,
    at: range,
    column: Column,
    plan: Plan,
    *,
    symmetric: bool,
) -> None:
    """All pieces of one tile; inside the residents only the rows up to the block's end, the rest by symmetry."""
    height = (at.stop if symmetric and at.stop <= rows.stop else rows.stop) - rows.start
    size = engine.width if engine.full else 1
    row, start = rows.start * size, at.start * size
    by_head = None
    if result.squares is not None:
        by_head = torch.zeros(engine.width, height, len(at), dtype=torch.float64, device=engine.device)

    def keep(piece: Piece, part: Tensor) -> None:
        write(result.parts[piece.name], part, row, start, symmetric, add=True)

    total = block_products(
        engine, held, column, height, len(at), plan.workspace, keep if result.parts else None, by_head
    )
    with engine.clock("writing"):
        write(result.values, total, row, start, symmetric)
        if by_head is not None and result.squares is not None:
            write(result.squares, by_head.square_().sum(0), row, start, symmetric)


def _tiles(n: int, m: int | None, plan: Plan) -> Iterator[tuple[range, range]]:
    for rows in ranges(0, n, plan.resident):
        for columns in ranges(rows.start if m is None else 0, n if m is None else m, plan.block):
            yield rows, columns

"""Products: exact inner products of parameter gradients between two sets of inputs, formed as one matrix in memory.

Features of some samples stay (the residents) while blocks of the others pass by; each block is harvested once per group
of residents, on a CPU by several threads, each with blocks of its own. With one set of inputs only one triangle is
computed. Sites accumulate in float64.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import add

import torch
from torch import Tensor

from ntkscope.core.progress import Progress, counter
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.contraction import Column, Features, block_products, cut, flat, hold_block, passing, ranges, write
from ntkscope.tangent.coverage import Coverage
from ntkscope.tangent.crew import recruit, share
from ntkscope.tangent.engine import Engine, Heads, probed
from ntkscope.tangent.harvest import PathChanged
from ntkscope.tangent.pieces import Piece
from ntkscope.tangent.plan import Plan
from ntkscope.tangent.precision import Precision
from ntkscope.tangent.subject import Subject


@dataclass
class Products:
    """What a run gives: the products, the self products of both sides, what each parameter did."""

    values: Tensor
    row_diagonal: Tensor
    column_diagonal: Tensor
    coverage: Coverage
    outputs: int = 1  # how many outputs were chosen
    contributions: dict[str, Tensor] = field(default_factory=dict)
    plan: Plan | None = None


def products(
    subject: Subject,
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
    on the func road.
    """
    road = Precision(precision, subject.dtype)
    func: frozenset[str] = frozenset()
    with road.context():
        while True:
            engine = Engine(subject, probed(x1, x2), heads, full=full, precision=road, func=func, profile=profile)
            try:
                return _run(engine, x1, x2, memory, per_layer, progress)
            except PathChanged as change:
                func |= change.names


def _run(engine: Engine, x1: Batch, x2: Batch | None, memory: int, per_layer: bool, progress: bool) -> Products:
    if x2 is not None and len(x2) < len(x1):  # the smaller side stays
        swapped = _run(engine, x2, x1, memory, per_layer, progress)
        parts = {name: part.T for name, part in swapped.contributions.items()}
        values, left, right = swapped.values.T, swapped.column_diagonal, swapped.row_diagonal
        return Products(values, left, right, swapped.coverage, engine.chosen, parts, swapped.plan)
    subject, width = engine.subject, engine.width
    block = width if engine.full else 1
    n, m = len(x1), len(x1 if x2 is None else x2)
    names = sorted({piece.name for piece in engine.pieces}) if per_layer else []
    plan = engine.plan(n, None if x2 is None else m, memory, kept=1 + len(names))
    crew = [engine]
    recruit(crew, plan.workers)
    if len(crew) < plan.workers:
        plan = engine.plan(n, None if x2 is None else m, memory, kept=1 + len(names), threads=len(crew))
        crew = crew[: plan.workers]
    values = torch.zeros(n * block, m * block, dtype=subject.dtype, device=subject.device)
    parts = {name: torch.zeros_like(values) for name in names}
    sides = [torch.zeros(n, width, dtype=torch.float64, device=subject.device) for _ in range(1 if x2 is None else 2)]
    if x2 is not None:
        sides[1] = torch.zeros(m, width, dtype=torch.float64, device=subject.device)
    total = sum(len(rows) * len(cols) for rows, cols in _tiles(n, None if x2 is None else m, plan))
    began = time.perf_counter()
    with counter(total, "kernel", enabled=progress) as bar:
        for rows in ranges(0, n, plan.resident):
            _residents(crew, x1, x2, rows, plan, values, parts, sides, bar)
    coverage = functools.reduce(add, [one.coverage() for one in crew])
    if len(crew) > 1:
        coverage = coverage.times((time.perf_counter() - began) / max(1e-9, sum(coverage.stages.values())))
    engine.check_finite(values, x1)
    rows_self = values.diagonal().double() if x2 is None else flat(sides[0], engine.full)
    columns_self = rows_self if x2 is None else flat(sides[1], engine.full)
    return Products(values, rows_self, columns_self, coverage, engine.chosen, parts, plan)


def _residents(
    crew: list[Engine],
    x1: Batch,
    x2: Batch | None,
    rows: range,
    plan: Plan,
    values: Tensor,
    parts: dict[str, Tensor],
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
        _tile(maker, values, parts, held, rows, at, column, plan, symmetric=x2 is None)
        with lock:
            bar.advance(len(rows) * len(at))

    own = list(ranges(rows.start, rows.stop, plan.block)) if x2 is None else []
    _each(crew, [*own[::-1], *ranges(first, len(others), plan.block)], work)  # of their own, the last are the longest


def _each(crew: list[Engine], blocks: Iterable[range], work: Callable[[Engine, range], None]) -> None:
    """`work` on every block: by one engine in this thread, or by several side by side."""
    if len(crew) > 1:
        share(crew, blocks, work, threads_each=max(1, torch.get_num_threads() // len(crew)))
        return
    for at in blocks:
        work(crew[0], at)


def _tile(
    engine: Engine,
    values: Tensor,
    parts: dict[str, Tensor],
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

    def keep(piece: Piece, part: Tensor) -> None:
        write(parts[piece.name], part, row, start, symmetric, add=True)

    total = block_products(engine, held, column, height, len(at), plan.workspace, keep if parts else None)
    with engine.clock("writing"):
        write(values, total, row, start, symmetric)


def _tiles(n: int, m: int | None, plan: Plan) -> Iterator[tuple[range, range]]:
    for rows in ranges(0, n, plan.resident):
        for columns in ranges(rows.start if m is None else 0, n if m is None else m, plan.block):
            yield rows, columns

"""Products: exact inner products of parameter gradients between two sets of inputs, formed as one matrix in memory.

Features of some samples stay (the residents) while blocks of the others pass by; each block is harvested once per group
of residents. With one set of inputs only one triangle is computed. Sites accumulate in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkscope.core.progress import counter
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.contraction import Column, Features, block_products, cut, flat, hold, passing, ranges, write
from ntkscope.tangent.coverage import Coverage
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
    values = torch.zeros(n * block, m * block, dtype=subject.dtype, device=subject.device)
    parts = {name: torch.zeros_like(values) for name in names}
    sides = [torch.zeros(n, width, dtype=torch.float64, device=subject.device) for _ in range(1 if x2 is None else 2)]
    if x2 is not None:
        sides[1] = torch.zeros(m, width, dtype=torch.float64, device=subject.device)
    total = sum(len(rows) * len(cols) for rows, cols in _tiles(n, None if x2 is None else m, plan))
    with counter(total, "kernel", enabled=progress) as bar:
        for rows in ranges(0, n, plan.resident):
            inside = slice(rows.start, rows.stop)
            held = hold(engine, x1[inside], plan.block, sides[0][inside] if x2 is not None else None)
            for at, column in _columns(engine, held, x1, x2, rows, plan, sides[-1]):
                _tile(engine, values, parts, held, rows, at, column, plan, symmetric=x2 is None)
                bar.advance(len(rows) * len(at))
            del held
    engine.check_finite(values, x1)
    rows_self = values.diagonal().double() if x2 is None else flat(sides[0], engine.full)
    columns_self = rows_self if x2 is None else flat(sides[1], engine.full)
    return Products(values, rows_self, columns_self, engine.coverage(), engine.chosen, parts, plan)


def _columns(
    engine: Engine, held: Features, x1: Batch, x2: Batch | None, rows: range, plan: Plan, side: Tensor
) -> Iterator[tuple[range, Column]]:
    """The blocks that pass by the residents: the residents themselves, then those after them; or all of `x2`."""
    if x2 is None:
        for at in ranges(rows.start, rows.stop, plan.block):
            yield at, cut(held, range(at.start - rows.start, at.stop - rows.start))
    others, first = (x1, rows.stop) if x2 is None else (x2, 0)
    for at in ranges(first, len(others), plan.block):
        yield at, passing(engine, others, at, side if x2 is not None and rows.start == 0 else None)


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

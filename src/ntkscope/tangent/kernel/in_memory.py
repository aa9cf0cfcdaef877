"""Products: exact inner products of parameter gradients between two sets of inputs, as one matrix in memory.

Features of some samples stay (the residents) while blocks of the others pass by; each block is captured once per group
of residents, on a CPU by several threads, each with blocks of its own. With one set of inputs only one triangle is
computed. Sites accumulate in float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import Certificate, UsageError
from ntkscope.core.progress import counter
from ntkscope.linalg.grams.assembly import Assembly
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.kernel.engines import Engines
from ntkscope.tangent.kernel.plan import (
    FEW,
    GAIN,
    Footprint,
    Plan,
    check_schedule,
    heads_at_once,
    largest_of,
    make_plan,
    plan_seconds,
    roomy,
)
from ntkscope.tangent.kernel.products import Maker
from ntkscope.tangent.kernel.tiles import SHARE, SQUARES, Tiles
from ntkscope.tangent.model.arithmetic import check_range
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.trace.probed import probed

PASSES = 4  # groups of layers at most


@dataclass(frozen=True, eq=False)
class Products:
    """What a run gives: the products, the self products of both sides, what each parameter did."""

    values: Tensor
    row_diagonal: Tensor
    column_diagonal: Tensor
    coverage: Coverage | None
    certificate: Certificate
    plan: Plan
    footprint: Footprint
    planes: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: int = 1  # how many outputs were chosen
    unit: float = 1.0  # by which gradients were multiplied

    @property
    def contributions(self) -> dict[str, Tensor]:
        """The products of every parameter's gradients, where they were asked for."""
        return {name.removeprefix(SHARE): part for name, part in self.planes.items() if name.startswith(SHARE)}

    @property
    def squares(self) -> Tensor | None:
        """The squares of every head's products, summed: what a sketch of outputs says its error with."""
        return self.planes.get(SQUARES)

    def in_units(self) -> Products:
        """The products of the gradients themselves; an error where their numbers do not hold them."""
        rows, columns = (
            float(side.max()) if side.numel() else 0.0 for side in (self.row_diagonal, self.column_diagonal)
        )
        check_range(rows**0.5 * columns**0.5, self.values.dtype, self.unit)
        if self.unit == 1:
            return self
        sides = [
            side / self.unit / self.unit for side in (self.row_diagonal, self.column_diagonal)
        ]  # perhaps of the values
        for part in (self.values, *self.contributions.values()):
            part.div_(self.unit).div_(self.unit)
        if self.squares is not None:
            self.squares.div_(self.unit**2).div_(self.unit**2)
        return replace(self, row_diagonal=sides[0], column_diagonal=sides[1])

    @property
    def turned(self) -> Products:
        """The same with rows and columns exchanged."""
        return replace(
            self,
            values=self.values.T,
            row_diagonal=self.column_diagonal,
            column_diagonal=self.row_diagonal,
            planes={name: plane.T for name, plane in self.planes.items()},
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
    schedule: str = "auto",
) -> Products:
    """`<g_k(x), g_l(x')>` for all samples: summed over k = l, or all pairs (`full`).

    A model that uses a parameter differently for later inputs than for the probed ones starts again with that parameter
    on a slower path.
    """
    check_schedule(schedule)
    rounding = Precision(precision, engines.subject.dtype)
    attempts = engines.attempts(probed(x1, x2), heads, full=full, precision=rounding, profile=profile)
    while True:
        with attempts, rounding.context():
            engine = attempts.engine()
            groups, planes = head_groups(engine, x1, x2, memory, per_layer), _planes(engine, per_layer)
            most = torch.get_num_threads() if engine.device.type == "cpu" and not engine.fallback.alone else 1
            made = multiplied(groups, x1, x2, memory, most, planes=planes, progress=progress, schedule=schedule)
            assert engine.heads.unit is not None
            return replace(made, outputs=engine.chosen, unit=engine.heads.unit)


def head_groups(engine: Engine, x1: Batch, x2: Batch | None, memory: int, per_layer: bool) -> list[Engine]:
    """The engine itself, or several for groups of its heads: as many at once as leave room for all, or some, residents."""
    n, m = len(x1), None if x2 is None else len(x2)
    kept = 1 + len(_planes(engine, per_layer)) + (engine.heads.sketch is not None)

    def residents(heads: int) -> int:
        return make_plan(n, m, engine.group_footprint(heads), memory, kept).resident

    if engine.full:  # every pair of heads is a number of its own
        residents(engine.width)
        return [engine]
    return engine.groups(heads_at_once(engine.width, min(n, m or n, FEW), residents))


def _planes(engine: Engine, per_layer: bool) -> dict[str, torch.dtype]:
    """The matrices that are wanted beside the kernel, by name."""
    names = sorted({piece.name for piece in engine.pieces}) if per_layer else []
    planes = {f"{SHARE}{name}": engine.dtype for name in names}
    return planes if engine.heads.sketch is None else {**planes, SQUARES: torch.float64}


def _in_passes(
    maker: Maker, each: Footprint, plan: Plan, planned: Callable[[Footprint], Plan], n: int, m: int | None
) -> tuple[Sequence[Maker], Footprint, Plan]:
    """The layers in groups, for each of which samples are run anew, where more samples stay then and that is quicker."""
    best: tuple[Sequence[Maker], Footprint, Plan] = ([maker], each, plan)
    least = plan_seconds(n, m, each, plan)
    for count in range(2, PASSES + 1) if plan.resident < min(n, m or n) else ():
        makers = maker.layers(count)
        if len(makers) < count:
            break
        parts = [replace(one.footprint, longest=each.longest) for one in makers]
        together = largest_of(parts)
        plan = replace(planned(together), passes=count)
        spent = sum(plan_seconds(n, m, part, plan) for part in parts)
        whole = plan.resident >= min(n, m or n) and plan.columns >= max(
            n, m or n
        )  # or rows are run again for every tile
        if whole and spent < GAIN * least:
            best, least = (makers, together, plan), spent
    return best


def multiplied(
    makers: Sequence[Maker],
    x1: Batch,
    x2: Batch | None,
    memory: int,
    threads: int,
    *,
    planes: Mapping[str, torch.dtype] | None = None,
    progress: bool = False,
    schedule: str = "blocks",
) -> Products:
    """The products of the features that makers give, one for each group of heads, inside `memory`, by at most `threads`."""
    planes = planes or {}
    if planes and schedule == "layers":
        raise UsageError(
            'got schedule="layers" with per_layer=True or outputs=OutputSketch(...), which keep further matrices; expected'
            ' schedule="blocks" or "auto"'
        )
    schedule = "blocks" if planes else schedule
    if x2 is not None and len(x2) < len(x1):  # the smaller side stays
        how: dict[str, Any] = {"planes": planes, "progress": progress, "schedule": schedule}
        return multiplied(makers, x2, x1, memory, threads, **how).turned
    n, m = len(x1), None if x2 is None else len(x2)
    kept = 1 + len(planes) + (SQUARES in planes)
    each = makers[0].footprint
    result = n * (m or n) * each.pairs * each.itemsize * kept
    makers[0].compare_modes(x1, each.slack * memory - result)
    each = replace(each, longest=makers[0].longest(n + (m or 0)))
    plan = roomy(n, m, each, memory, kept, threads, schedule, makers[0].sharing)
    if len(makers) == 1 and plan.layered:

        def planned(each: Footprint) -> Plan:
            return roomy(n, m, each, memory, kept, threads, "layers", makers[0].sharing)

        makers, each, plan = _in_passes(makers[0], each, plan, planned, n, m)
    across = (plan.columns if m is not None else None) if plan.layered else m or n
    cut = {"block": plan.block, "workspace": plan.workspace, "forming": plan.forming}
    cut["wide"] = each.wide(plan.resident, plan.block)
    tiles = Tiles(makers, x1, x2, plan.resident, across, **cut, repeatable=False)
    if tiles.staff(plan.workers) < plan.workers:  # not as many copies of the model can be had
        plan = make_plan(n, m, each, memory, kept, tiles.threads)
        tiles.recut(plan.resident, plan.block, plan.workspace)
        tiles.wide = each.wide(plan.resident, plan.block)
        tiles.staff(plan.workers)
    spare = max(0.0, each.slack * memory - result - plan.held(each, n, m)) / plan.workers
    blocks = len(makers) * -(-(n + (m or 0)) // plan.block)
    for maker in tiles.makers:
        maker.begin(blocks, spare, plan.workers)
    began = time.perf_counter()
    with counter(tiles.pairs, "kernel", enabled=progress) as bar:
        made = Assembly.of(tiles, planes, bar.advance)
        for i, j in tiles.grid.path():
            made.write(i, j, tiles.tile(i, j, made.place(i, j)))
    coverage, certificate = tiles.coverage(), tiles.certificate()
    if plan.workers > 1 and coverage is not None:
        factor = (time.perf_counter() - began) / max(1e-9, sum(coverage.stages.values()))
        coverage = coverage.times(factor)
        certificate = replace(certificate, seconds=certificate.seconds * factor)
    rows, columns = made.row_diagonal, made.column_diagonal
    assert rows is not None
    assert columns is not None
    return Products(made.values, rows, columns, coverage, certificate, plan, each, made.planes)

"""The schedule: formed gradients stay while blocks pass by ("blocks"), or factors stay and gradients are formed layer by layer
("layers").

Both plans are made for the same budget, and the one with less work is taken. Work is counted in multiply-adds of products:
running a sample through the model and forming a gradient cost more for each multiply-add than a large product does, and a
product of few columns waits for memory. On a CPU, where threads take blocks of their own, "auto" means "blocks".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ntkscope.core import MemoryBudgetError, UsageError
from ntkscope.core.budget import over_budget
from ntkscope.tangent.plan import (
    COPIES,
    CUDA_LARGEST,
    CUDA_WORKSPACE,
    LARGEST,
    LEAST_WORKSPACE,
    WORKSPACE,
    Cut,
    Footprint,
    Plan,
    even,
    largest,
    make_cut,
    make_plan,
    work_side,
)

SCHEDULES = ("auto", "blocks", "layers")
CAPTURE, FORMING = 4.0, 3.0  # times as long as a multiply-add of a large product (ResNet-18 on an H200: 1.6 – 8, 1 – 6)
RIDGE = 100.0  # multiply-adds while one number of what stays is read; a product with w columns takes 1 + RIDGE / w of its time
GAIN = 0.95  # of the work of "blocks", which "layers" must stay below
FORMED = 0.25  # of the budget: gradients of one layer, where not all fit


def check_schedule(schedule: str) -> None:
    if schedule not in SCHEDULES:
        raise UsageError(f"got schedule={schedule!r}; expected one of {', '.join(SCHEDULES)}")


def planned(
    n: int, m: int | None, each: Footprint, memory: int, kept: int, threads: int, schedule: str = "auto"
) -> Plan:
    """The plan for (n, m) in memory; m None for one set of inputs with itself.

    Longer blocks than usual (`each.longest`) are taken if as many samples stay as with usual ones.
    """
    usual = _planned(n, m, replace(each, longest=0), memory, kept, threads, schedule)
    while each.longest and each.longest != usual.block:
        plan = _planned(n, m, each, memory, kept, threads, schedule)
        if plan.block <= usual.block or (plan.resident >= usual.resident and plan.columns >= usual.columns):
            return plan
        each = replace(each, longest=max(plan.block // 2, usual.block))
    return usual


def _planned(n: int, m: int | None, each: Footprint, memory: int, kept: int, threads: int, schedule: str) -> Plan:
    check_schedule(schedule)
    if schedule == "layers":
        return layers_plan(n, m, each, memory, kept)
    blocks = make_plan(n, m, each, memory, kept, threads)
    if schedule == "blocks" or not each.cuda or not each.formed:
        return blocks
    try:
        layers = layers_plan(n, m, each, memory, kept)
    except MemoryBudgetError:
        return blocks
    side, most = min(n, m or n), max(n, m or n)
    first, second = (work(side, None if m is None else most, each, plan) for plan in (blocks, layers))
    return replace(layers, gain=first / second) if second <= GAIN * first else blocks


def layers_plan(n: int, m: int | None, each: Footprint, memory: int, kept: int = 1) -> Plan:
    """The largest tiles whose factors fit beside the result."""
    side, most = min(n, m or n), max(n, m or n)
    available = each.slack * memory - n * (m or n) * each.pairs * each.itemsize * kept
    usual = 2**33 if each.cuda else 2**26
    workspace = int(max(LEAST_WORKSPACE, min(available / 8, usual)))
    block = _block(most, each, available - workspace)
    while True:
        if m is None and _fits(each, side, 0, block, workspace, available):
            rows, columns = side, 0
            break
        square = largest(most, _square(each, block, workspace, available))
        rows = min(square, side)
        columns = largest(most, _beside(each, rows, block, workspace, available)) if m is not None else rows
        if min(rows, columns) >= min(block, side) or block == 1:
            break
        block = max(1, block // 2)
    if rows < 1 or (columns < 1 and rows < side):
        needed = n * (m or n) * each.pairs * each.itemsize * kept + _smallest(each)
        what = f"for a result of {n} × {m or n} samples and the factors of one"
        raise over_budget(memory, needed / each.slack * 1.01 + 1, what, 'raise memory=, or use schedule="blocks"')
    block = max(1, min(block, max(rows, columns)))
    forming = _forming(each, rows, columns, block, workspace, available)
    return Plan(rows, block, workspace, 1, columns or rows, forming)


def cut_for(
    n: int, m: int | None, each: Footprint, memory: int, workers: int, rows: int = 1, schedule: str = "auto"
) -> Cut:
    """The cut of a new store: into the largest tiles of the schedule that takes less work; `rows` of the matrix a sample."""
    check_schedule(schedule)
    if schedule == "layers":
        return layers_cut(n, m, each, memory, rows)
    blocks = make_cut(n, m, each, memory, workers, rows)
    if schedule == "blocks" or not each.cuda or not each.formed:
        return blocks
    try:
        layers = layers_cut(n, m, each, memory, rows)
    except MemoryBudgetError:
        return blocks
    first, second = (
        work(n, m, each, Plan(c.size, c.block, c.workspace, 1, c.size, c.forming)) for c in (blocks, layers)
    )
    return layers if second <= GAIN * first else blocks


def layers_cut(n: int, m: int | None, each: Footprint, memory: int, rows: int = 1) -> Cut:
    """The largest square tiles whose factors, of rows and of columns, fit."""
    side, available = max(n, m or n), each.slack * memory
    wanted = max(1, min(side, (CUDA_LARGEST if each.cuda else LARGEST) // rows, work_side(each)))
    workspace = int(max(LEAST_WORKSPACE, min(available / 8, CUDA_WORKSPACE if each.cuda else WORKSPACE)))
    block = _block(wanted, each, available - workspace)

    def copies(size: int) -> int:
        return COPIES * size**2 * each.pairs * each.itemsize

    def fits(size: int) -> bool:
        return _fits(each, size, size, min(block, size), workspace, available - copies(size))

    size = largest(wanted, fits)
    while size < min(block, wanted) and block > 1:
        block //= 2
        size = largest(wanted, fits)
    if size < 1:
        needed = COPIES * each.pairs * each.itemsize + _smallest(each)
        what = "for the factors of two samples"
        raise over_budget(memory, needed / each.slack * 1.01 + 1, what, 'raise memory=, or use schedule="blocks"')
    made = even(Cut(size, min(block, size), workspace), side)
    forming = _forming(each, made.size, made.size, made.block, workspace, available - copies(made.size))
    return replace(made, forming=forming)


def _smallest(each: Footprint) -> float:
    """Bytes with which two samples fit, an eighth of them for products."""
    return each.shelf(1, 1, 1, 2 * max(1, each.formed), 0) * 8 / 7 + LEAST_WORKSPACE


def _block(most: int, each: Footprint, room: float) -> int:
    return max(1, min(each.largest_block, most, int(room * 0.3 / each.passing)))


def _least(each: Footprint, rows: int, columns: int, block: int, available: float) -> int:
    """Bytes for formed gradients without which a tile is not worth it: two blocks of them, a share of the budget, or all."""
    whole = (rows + columns) * max(1, each.formed)
    return int(min(whole, max(2 * block * max(1, each.formed), FORMED * available)))


def _fits(each: Footprint, rows: int, columns: int, block: int, workspace: int, available: float) -> bool:
    return each.shelf(rows, columns, block, _least(each, rows, columns, block, available), workspace) <= available


def _square(each: Footprint, block: int, workspace: int, available: float) -> Callable[[int], bool]:
    return lambda size: _fits(each, size, size, min(block, size), workspace, available)


def _beside(each: Footprint, rows: int, block: int, workspace: int, available: float) -> Callable[[int], bool]:
    return lambda size: _fits(each, rows, size, block, workspace, available)


def _forming(each: Footprint, rows: int, columns: int, block: int, workspace: int, available: float) -> int:
    """What is left for formed gradients, at most all of the largest layer's."""
    left = available - each.shelf(rows, columns, block, 0, workspace)
    return int(max(1, min((rows + columns) * max(1, each.formed), left)))


def work(n: int, m: int | None, each: Footprint, plan: Plan) -> float:
    """The cost of a plan, in multiply-adds of large products: samples run and formed, pairs multiplied.

    n inputs with themselves, or n that stay with m others.
    """
    size, others = plan.resident, n if m is None else m
    starts = range(0, n, size)
    captured = sum(min(size, n - at) + (max(0, n - at - size) if m is None else others) for at in starts)
    pairs = n * (n + 1) / 2 if m is None else float(n) * others
    once = max(0.0, each.forming_cost - each.again_cost)
    if not plan.layered:
        width = min(plan.block, others)
        formed, again = each.forming_cost, 0.0
    else:
        across = plan.columns or size
        width = max(1, min(across, plan.forming // max(1, 2 * each.formed)))
        again = sum(
            min(size, n - at) * max(1, -(-(max(0, n - at - size) if m is None else others) // across)) for at in starts
        )
        formed, again = once, (captured + again) * each.again_cost
    samples = captured * (CAPTURE * each.capture_cost + FORMING * formed) + FORMING * again
    return samples + pairs * each.pair_cost * (1 + RIDGE / width)

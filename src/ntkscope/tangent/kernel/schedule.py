"""The schedule: formed gradients stay while blocks pass by ("blocks"), or factors stay and gradients are formed layer by layer
("layers").

Both plans are made for the same budget, and the one with less work is taken. Work is counted in multiply-adds of products:
running a sample through the model and forming a gradient cost more for each multiply-add than a large product does, and a
product of few columns waits for memory. On a CPU, where threads take blocks of their own, "auto" means "blocks".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TypeVar

from ntkscope.core import UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.core.sizes import over_budget
from ntkscope.tangent.kernel.plan import (
    COPIES,
    CUDA_LARGEST,
    CUDA_LONGEST,
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
# Times as long as a multiply-add of a large product, checks included: ResNet-18 on an H200, features of 32 and of 16 bits.
CAPTURE, FORMING = (4.0, 13.0), (3.0, 8.0)
LARGE = 0.5  # of the work of forming: what layers about as large as the largest take
AGAIN = 0.015  # of the work of forming: patches, made again for every part of the rows that are formed at a time
RIDGE = 100.0  # multiply-adds while one number of what stays is read; a product with w columns takes 1 + RIDGE / w of its time
GAIN = 0.95  # of the work of "blocks", which "layers" must stay below
ROOMY = 1.15  # times the work otherwise, up to which there is room for passes back of several heads
# Of the budget: the least for gradients of one layer, where not all fit; the others where they save work.
FORMED = (0.25, 0.1, 0.05)
NARROW = 512  # columns that meet them
# On a GPU a block takes as long as its own samples and about so many more, for launches (an estimate).
SHORT = 64.0

T = TypeVar("T")


def check_schedule(schedule: str) -> None:
    if schedule not in SCHEDULES:
        raise UsageError(f"got schedule={schedule!r}; expected one of {', '.join(SCHEDULES)}")


@lru_cache(maxsize=64)
def planned(
    n: int, m: int | None, each: Footprint, memory: int, kept: int, threads: int, schedule: str = "auto"
) -> Plan:
    """The plan for (n, m) in memory; m None for one set of inputs with itself.

    Longer blocks than usual (`each.longest`) are taken if that is no more work than usual ones are.
    """
    side, most = min(n, m or n), max(n, m or n)
    usual = _planned(n, m, replace(each, longest=0), memory, kept, threads, schedule)
    least = work(side, None if m is None else most, each, usual)
    while each.longest and each.longest != usual.block:
        plan = _planned(n, m, each, memory, kept, threads, schedule)
        if plan.block <= usual.block or work(side, None if m is None else most, each, plan) <= least / GAIN:
            return plan
        each = replace(each, longest=max(plan.block // 2, usual.block))
    return usual


def roomy(
    n: int, m: int | None, each: Footprint, memory: int, kept: int, threads: int, schedule: str, extra: int
) -> Plan:
    """The same with `extra` bytes besides for each sample of a block, which running them otherwise takes; without, where that
    would be much more work, or features stay: then shorter blocks cost more than passes that several heads share gain."""
    usual = planned(n, m, each, memory, kept, threads, schedule)
    if not (extra and usual.layered):
        return usual
    larger = replace(each, passing=each.passing + extra, caching=each.caching + extra if each.caching else 0)
    try:
        found = planned(n, m, larger, memory, kept, threads, schedule)
    except MemoryBudgetError:
        return usual
    side, most = min(n, m or n), max(n, m or n)
    first, second = (work(side, None if m is None else most, each, plan) for plan in (usual, found))
    return found if second <= ROOMY * first else usual


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
    """The tiles with the least work whose factors fit beside the result.

    Shorter blocks, and less room for products, leave room for the factors of more samples, so that fewer are run twice.
    """
    side, most = min(n, m or n), max(n, m or n)
    available = each.slack * memory - n * (m or n) * each.pairs * each.itemsize * kept
    others = None if m is None else most

    def tiles(trial: Trial) -> Plan | None:
        block, workspace = trial.block, trial.workspace
        if m is None and trial.fits(each, side, 0, available):
            rows, columns = side, 0
        else:
            rows = min(side, largest(most, lambda size: trial.fits(each, size, size, available)))
            columns = largest(most, lambda size: trial.fits(each, rows, size, available)) if m is not None else rows
        if rows < 1 or (columns < 1 and rows < side):
            return None
        block = max(1, min(block, max(rows, columns)))
        return Plan(
            rows, block, workspace, 1, columns or rows, _forming(each, rows, columns, block, workspace, available)
        )

    found = _least_work(
        map(tiles, _trials(each, most, available, 2**33 if each.cuda else 2**26)),
        lambda plan: work(side, others, each, plan),
    )
    if found is None:
        needed = n * (m or n) * each.pairs * each.itemsize * kept + _smallest(each)
        what = f"for a result of {n} × {m or n} samples and the factors of one"
        raise over_budget(memory, needed / each.slack * 1.01 + 1, what, 'raise memory=, or use schedule="blocks"')
    return found


@dataclass(frozen=True)
class Trial:
    """A length of blocks, bytes for products, and the least share of a budget for the gradients of one layer."""

    block: int
    workspace: int
    share: float

    def fits(self, each: Footprint, rows: int, columns: int, available: float) -> bool:
        """Whether the factors of so many samples fit, with gradients of all, or of a share of the budget, enough for some rows
        of the parameter or for two blocks."""
        block, size = max(1, min(self.block, max(rows, columns))), max(1, each.formed)
        some = (rows + columns) * each.least if _divided(each) else 2 * block * size
        forming = int(min((rows + columns) * size, max(some, self.share * available)))
        return each.cache(rows, columns, block, forming, self.workspace) <= available


def _divided(each: Footprint) -> bool:
    """Whether some rows of every large gradient can be formed without the others."""
    return 0 < each.least < each.formed


def _trials(each: Footprint, most: int, available: float, usual: int) -> Iterator[Trial]:
    """From the longest blocks and the most room for products and gradients on."""
    largest_workspace = int(max(LEAST_WORKSPACE, min(available / 8, usual)))
    workspaces = dict.fromkeys((largest_workspace, max(LEAST_WORKSPACE, largest_workspace // 4)))
    for share, workspace in product(FORMED, workspaces):
        block = each.whole(min(each.largest_block, most, int((available - workspace) * 0.3 / each.passing)), most)
        while True:
            yield Trial(block, workspace, share)
            if block == 1:
                break
            block //= 2


def _least_work(trials: Iterable[T | None], cost: Callable[[T], float]) -> T | None:
    """The first trial whose work no later one beats by more than a little: short blocks cost more than is counted."""
    best, least = None, float("inf")
    for trial in trials:
        if trial is not None and (found := cost(trial)) < GAIN * least:
            best, least = trial, found
    return best


def cut_for(
    n: int, m: int | None, each: Footprint, memory: int, workers: int, rows: int = 1, schedule: str = "auto"
) -> Cut:
    """The cut of a new store: into the largest tiles of the schedule that takes less work; `rows` of the matrix a sample."""
    check_schedule(schedule)
    each = replace(each, longest=each.longest or (CUDA_LONGEST if each.cuda else 0))
    if schedule == "layers":
        return layers_cut(n, m, each, memory, rows)
    blocks = make_cut(n, m, each, memory, workers, rows)
    if schedule == "blocks" or not each.cuda or not each.formed:
        return blocks
    try:
        layers = layers_cut(n, m, each, memory, rows)
    except MemoryBudgetError:
        return blocks
    first, second = (work(n, m, each, _as_plan(cut)) for cut in (blocks, layers))
    return layers if second <= GAIN * first else blocks


def layers_cut(n: int, m: int | None, each: Footprint, memory: int, rows: int = 1) -> Cut:
    """The square tiles with the least work whose factors, of rows and of columns, fit."""
    side, available = max(n, m or n), each.slack * memory
    wanted = max(1, min(side, (CUDA_LARGEST if each.cuda else LARGEST) // rows, work_side(each)))

    def copies(size: int) -> int:
        return COPIES * size**2 * each.pairs * each.itemsize

    def tiles(trial: Trial) -> Cut | None:
        size = largest(wanted, lambda size: trial.fits(each, size, size, available - copies(size)))
        if size < 1:
            return None
        made = even(Cut(size, min(trial.block, size), trial.workspace), side)
        forming = _forming(each, made.size, made.size, made.block, made.workspace, available - copies(made.size))
        return replace(made, forming=forming)

    found = _least_work(
        map(tiles, _trials(each, wanted, available, CUDA_WORKSPACE if each.cuda else WORKSPACE)),
        lambda cut: work(n, m, each, _as_plan(cut)),
    )
    if found is None:
        needed = COPIES * each.pairs * each.itemsize + _smallest(each)
        what = "for the factors of two samples"
        raise over_budget(memory, needed / each.slack * 1.01 + 1, what, 'raise memory=, or use schedule="blocks"')
    return found


def _as_plan(cut: Cut) -> Plan:
    return Plan(cut.size, cut.block, cut.workspace, 1, cut.size, cut.forming)


def _smallest(each: Footprint) -> float:
    """Bytes with which two samples fit, an eighth of them for products."""
    return each.cache(1, 1, 1, 2 * max(1, each.formed), 0) * 8 / 7 + LEAST_WORKSPACE


def _forming(each: Footprint, rows: int, columns: int, block: int, workspace: int, available: float) -> int:
    """What is left for formed gradients, at most all of the largest layer's."""
    left = available - each.cache(rows, columns, block, 0, workspace)
    return int(max(1, min((rows + columns) * max(1, each.formed), left)))


def work(n: int, m: int | None, each: Footprint, plan: Plan) -> float:
    """The cost of a plan, in multiply-adds of large products: samples run and formed, pairs multiplied.

    n inputs with themselves, or n that stay with m others. Short blocks on a GPU take longer for each sample.
    """
    size, others = plan.resident, n if m is None else m
    rounds = -(-n // size)  # each with `size` samples that stay, and the last with the rest
    earlier = size * rounds * (rounds - 1) // 2
    met = backward_pass = rounds * n - earlier if m is None else n + rounds * others  # rows and columns of all tiles
    pairs = n * (n + 1) / 2 if m is None else float(n) * others
    once = max(0.0, each.forming_cost - each.again_cost)
    if not plan.layered:
        width = min(plan.block, others)
        formed, again = each.forming_cost, 0.0
    else:
        across = plan.columns or size
        times = max(1, -(-others // across))
        again = earlier + n - (rounds - 1) * size if m is None and across == size else n * times
        backward_pass -= _passed(n, m, size, across, rounds)
        samples = min(n, size) + (0 if m is None and size >= n else across)
        if _divided(each) and samples * each.least <= plan.forming:
            width = across
            over = AGAIN * (met + again) * (-(-samples * each.formed // plan.forming) - 1)
        else:
            width = max(1, min(across, plan.forming // max(1, 2 * each.formed)))
            rows = max(plan.block, plan.forming // max(1, each.formed) - NARROW)  # that fit beside some columns
            over = LARGE * (met - n) * (-(-min(n, size) // rows) - 1) if each.cuda else 0.0
        formed, again = once, (met + again + over) * each.again_cost
    capture = CAPTURE[each.short] * each.capture_cost * (1 + SHORT / plan.block if each.cuda else 1.0)
    work = backward_pass * (capture + FORMING[each.short] * formed) + FORMING[each.short] * again
    return work + pairs * each.pair_cost * (1 + RIDGE / width)


def _passed(n: int, m: int | None, size: int, across: int, rounds: int) -> int:
    """Samples that need not be run again in the order of `Grid.path`: the rows of all rounds but the first are columns of the
    tile before; of two sets, the columns where a round begins are those where the last one ended."""
    if m is None:
        return n - size if across == size and rounds > 1 else 0
    last = m - (-(-m // across) - 1) * across
    return rounds // 2 * last + (rounds - 1) // 2 * min(across, m)

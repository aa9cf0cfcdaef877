"""The planner: how many samples are held at once, and in which order sums are made, so that a run stays inside its budget.

Features of some samples stay while blocks of others pass by ("blocks"); or factors stay, and gradients are formed layer by
layer ("layers"). In memory the whole result is held, and as many samples stay as fit beside it (`planned`); for a store one
tile is held at a time, and the cut into tiles is chosen once, when the store is begun, and kept there (`cut_for`): the same
tile is then computed by the same sums whoever does it, whenever, and with whatever memory.

On a GPU the plan is the one that is predicted to take the least time (`seconds`) among all that fit, of both schedules. Sides
of tiles and lengths of blocks are tried that depend neither on the budget nor on the number of samples: what fits a budget fits
a larger one, so more memory is never slower, and what fits many samples fits fewer. On a CPU, where threads take blocks of
their own, "auto" means "blocks", of as many samples as fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from itertools import product
from math import isqrt
from typing import Any, NoReturn, TypeVar

from ntkscope.core import UsageError
from ntkscope.core.errors import MemoryBudgetError, StoreError
from ntkscope.core.sizes import over_budget, show_bytes

SLACK, CUDA_SLACK = 0.8, 0.92  # of the budget: what allocators keep and libraries take for scratch is not ours to count
CPU_BLOCK, CUDA_BLOCK, CUDA_LONGEST = 128, 256, 512  # samples of a block; the last, of a store
BLOCKS = (1, 2, 4, 8, 16, 24, 32, 48, *range(64, 513, 64), 768, 1024, 1536, 2048, 3072, 4096)
# Samples of a side: products of other lengths take up to seven times longer on a GPU's tensor cores.
WHOLE = (64, 8, 1)
WIDE = 256  # columns of a product from which on wider ones are hardly faster on a CPU
CREW_BLOCK = 16  # samples of a block from which on a thread of its own is worth it
CREW = 16  # threads at blocks of their own; what Python does between products is done by one at a time
LARGEST, CUDA_LARGEST = 2048, 8192  # rows of a tile: what a run that is killed loses, and what a reader holds
WORK, CUDA_WORK = 2**40, 2**52  # multiply-adds of a tile: below a minute on two cores, on a GPU
WORKSPACE, CUDA_WORKSPACE, LEAST_WORKSPACE = 2**24, 2**32, 2**21  # bytes for products
PASSING = 0.4  # of a GPU's budget: the most for a block while it is run; what plans leave free makes that faster (`execution`)
COPIES = 3  # of a tile while it is made and written
FEW, FEW_STORED = 16, 4  # samples that stay, or of a tile, below which heads are taken in smaller groups

SCHEDULES = ("auto", "blocks", "layers")
LARGE = 0.5  # of the work of forming: what layers about as large as the largest take
AGAIN = 0.015  # of the work of forming: patches, made again for every part of the rows that are formed at a time
BLOCK_SECONDS = 0.04  # that a block takes besides its samples: its check, and launches
GAIN = 0.98  # of the time of "blocks", which "layers" must stay below
SHARED = 1.4  # times as fast as otherwise samples are run whose heads share passes back (1.1 to 2.3 were measured)
NARROW = 512  # columns that meet gradients of one layer, where not all fit


@dataclass(frozen=True)
class Speed:
    """Multiply-adds a second of an H200: of what pairs cost, of running samples, of forming gradients. A product with w columns
    takes 1 + `ridge` / w of its time."""

    products: float
    ridge: float
    running: float
    forming: float


# By what products are made of: float32 numbers, the same in two halves (`split_products`), numbers of 16 bits. Fitted to the
# stages of ResNet-18, ViT-tiny and BERT-base with 512 and 2,048 inputs.
SPEEDS = {
    "float32": Speed(30e12, 100.0, 17.5e12, 16e12),
    "halves": Speed(112e12, 260.0, 17.5e12, 16e12),
    "16 bit": Speed(425e12, 160.0, 36e12, 55e12),
}

T = TypeVar("T")


@dataclass(frozen=True)
class Footprint:
    """What one sample takes, in bytes: `feature` while it stays, `passing` while its block is captured and formed.

    A pair of samples has `pairs` numbers of `itemsize` bytes in the result and costs `pair_cost` multiply-adds. `worker`:
    what each thread at blocks of its own takes besides them.

    Where gradients can be formed later (`deferred`): `kept` bytes while the factors stay, `formed` bytes of one layer's
    gradient, `least` bytes of as few of its rows as are formed at a time (0: of all), `caching` bytes while a block is
    captured whose gradients have room of their own (0: as `passing`), `check` bytes for each block that is not compared with
    autograd yet. `capture_cost`, `forming_cost` and `again_cost` are multiply-adds a sample: of running it, of forming its
    features, and of those that are formed later. `made_of`: a key of `SPEEDS`.
    """

    feature: int
    passing: int
    itemsize: int
    pairs: int = 1
    pair_cost: float | int = 1.0
    cuda: bool = False
    worker: int = 0
    kept: int = 0
    formed: int = 0
    least: int = 0
    caching: int = 0
    check: int = 0
    capture_cost: float = 0.0
    forming_cost: float = 0.0
    again_cost: float = 0.0
    made_of: str = "float32"
    longest: int = 0  # samples of a block at most; 0: the usual number
    extra: int = 0  # of `passing`: with which heads share passes back

    @property
    def slack(self) -> float:
        """The share of a budget that is ours to fill."""
        return CUDA_SLACK if self.cuda else SLACK

    @property
    def largest_block(self) -> int:
        return self.longest or (CUDA_BLOCK if self.cuda else CPU_BLOCK)

    @property
    def divided(self) -> bool:
        """Whether some rows of every large gradient can be formed without the others."""
        return 0 < self.least < self.formed

    def sharing(self, extra: int) -> Footprint:
        """Where heads share passes back, which takes `extra` bytes."""
        caching, cost = self.caching + extra if self.caching else 0, self.capture_cost / SHARED
        return replace(self, passing=self.passing + extra, caching=caching, capture_cost=cost, extra=extra)

    def tile(self, rows: int, columns: int) -> int:
        """Bytes of the float64 tile between samples, and of the product that is added to it."""
        return 8 * rows * columns * self.pairs * 2

    def result(self, n: int, m: int | None, copies: int = 1) -> int:
        """Bytes of the products of n samples with m others, or with themselves."""
        return n * (n if m is None else m) * self.pairs * self.itemsize * copies

    def held(self, resident: int, block: int, workspace: int, workers: int = 1) -> int:
        """Bytes while `resident` samples stay and every worker has a block that passes by, and products with it."""
        passing = block * self.passing + self.tile(resident, block) + workspace + self.worker
        return resident * self.feature + workers * passing

    def wide(self, resident: int, block: int) -> int:
        """Columns of a product of samples that stay with each other: wide ones are faster, and on a CPU they may take the room
        of a block that passes by, which waits."""
        fitting = 0 if self.cuda else block * self.passing // self.tile(max(1, resident), 1)
        return max(block, min(WIDE, fitting))

    def cache(self, rows: int, columns: int, block: int, forming: int, workspace: int) -> int:
        """Bytes while the factors of `rows` and `columns` samples stay and `forming` bytes of gradients are formed of them."""
        blocks = -(-rows // block) + -(-columns // block)
        passing = block * (self.caching or self.passing)
        held = (rows + columns) * (self.kept or self.feature) + blocks * self.check + passing
        return held + forming + workspace + self.worker + self.tile(rows, columns or rows)

    def least_to_form(self, rows: int, columns: int, block: int) -> int:
        """Bytes for some rows of the largest gradient of all samples, or for the gradients of two blocks."""
        samples, size = rows + columns, max(1, self.formed)
        return min(samples * size, samples * self.least if self.divided else 2 * block * size)

    def left_to_form(self, rows: int, columns: int, block: int, workspace: int, available: float) -> int:
        """What is left for formed gradients, at most all of the largest layer's."""
        left = available - self.cache(rows, columns, block, 0, workspace)
        return int(max(1, min((rows + columns) * max(1, self.formed), left)))


def largest_of(several: Sequence[Footprint]) -> Footprint:
    """What fits where any of several must."""
    each: dict[str, Any] = {field.name: max(getattr(one, field.name) for one in several) for field in fields(Footprint)}
    return Footprint(**each)


@dataclass(frozen=True)
class Plan:
    """`resident` samples keep their features while blocks of `block` samples pass by; `workspace` bytes for products.

    `workers` blocks pass by at once, each with a workspace of its own. With `forming` bytes, the schedule is "layers": factors
    of `resident` rows and `columns` columns stay, and gradients of one layer at a time are formed in so many bytes; `gain`:
    how many times as fast as "blocks" that is predicted to be. `passes`: how many times samples are run, each time for some of
    the layers.
    """

    resident: int
    block: int
    workspace: int
    workers: int = 1
    columns: int = 0
    forming: int = 0
    gain: float = 0.0
    passes: int = 1

    @property
    def layered(self) -> bool:
        return self.forming > 0

    def held(self, each: Footprint, n: int, m: int | None) -> int:
        """Bytes beside the result of (n, m); m None for one set of inputs with itself."""
        if self.layered:
            alone = m is None and self.resident >= n
            return each.cache(self.resident, 0 if alone else self.columns, self.block, self.forming, self.workspace)
        return each.held(self.resident, self.block, self.workspace, self.workers)

    def __str__(self) -> str:
        if not self.layered:
            side_by_side = f", {self.workers} at once" if self.workers > 1 else ""
            return f"blocks: features of {self.resident} samples stay, blocks of {self.block} pass by{side_by_side}"
        chosen = f"; {self.gain:.1f} times as fast as blocks, by the estimate" if self.gain else ""
        several = f" in {self.passes} passes" if self.passes > 1 else ""
        return (
            f"layers: factors of {self.resident} × {self.columns} samples stay, run{several} in blocks of {self.block},"
            f" gradients formed layer by layer in {show_bytes(self.forming)}{chosen}"
        )


@dataclass(frozen=True)
class Cut:
    """Tiles of `size` samples a side, captured in blocks of `block`, with `workspace` bytes for products.

    `heads`: how many heads are taken at once, 0 for all of them. `forming`: bytes for the gradients of one layer where factors
    stay and gradients are formed layer by layer, 0 where features stay.
    """

    size: int
    block: int
    workspace: int
    heads: int = 0
    forming: int = 0

    @classmethod
    def of(cls, plan: Plan) -> Cut:
        return cls(plan.resident, plan.block, plan.workspace, 0, plan.forming)

    @property
    def plan(self) -> Plan:
        return Plan(self.size, self.block, self.workspace, 1, self.size, self.forming)

    def needs(self, each: Footprint, workers: int = 1) -> int:
        """Bytes: the rows' features, the tile, and for every worker a block that passes by and its products."""
        tile = each.result(self.size, None, COPIES)
        if self.forming:
            return tile + each.cache(self.size, self.size, self.block, self.forming, self.workspace)
        return tile + each.held(self.size, self.block, self.workspace, workers)

    def workers(self, each: Footprint, memory: int, most: int) -> int:
        """How many blocks may pass by at once; an error that says the smallest budget where not even one may."""
        if each.slack * memory < self.needs(each):
            what = f"for tiles of {self.size} samples, captured in blocks of {self.block}"
            remedy = "raise memory=" + (", or begin a new store, which chooses smaller tiles" if self.size > 1 else "")
            raise over_budget(memory, self.needs(each) / each.slack * 1.01 + 1, what, remedy)
        if self.forming:
            return 1
        fitting = [count for count in range(2, most + 1) if self.needs(each, count) <= each.slack * memory]
        return max(fitting, default=1)

    def even(self, side: int) -> Cut:
        """As many tiles of about the same size instead of whole ones and a rest, whole blocks where that is no more."""
        even = -(-side // -(-side // self.size))
        whole = -(-even // self.block) * self.block
        return replace(self, size=whole if whole <= min(self.size, side) else even)

    def __str__(self) -> str:
        grouped = f", {self.heads} heads at a time" if self.heads else ""
        layers = f", layer by layer in {self.forming} bytes" if self.forming else ""
        return f"tiles of {self.size} samples, blocks of {self.block}, {self.workspace} bytes for products{grouped}{layers}"

    def to_json(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, values: Any, where: str) -> Cut:
        """A cut that a store kept; anything else is refused."""
        if isinstance(values, Mapping) and {"size", "block", "workspace"} <= values.keys():
            known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
            if all(type(value) is int and value >= 1 for value in known.values()):
                return cls(**known)
        raise StoreError(
            f"{where} does not say how its tiles were cut (got {values!r}); expected one written by ns.kernel or"
            " `ntkscope kernel`: choose another folder"
        )


def check_schedule(schedule: str) -> None:
    if schedule not in SCHEDULES:
        raise UsageError(f"got schedule={schedule!r}; expected one of {', '.join(SCHEDULES)}")


# -- in memory -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def planned(
    n: int, m: int | None, each: Footprint, memory: int, kept: int, threads: int, schedule: str = "auto"
) -> Plan:
    """The plan for (n, m) in memory; m None for one set of inputs with itself. `kept`: copies of the result that are held."""
    return _quicker(
        schedule,
        each,
        lambda: make_plan(n, m, each, memory, kept, threads),
        lambda: _layers_plan(n, m, each, memory, kept),
        lambda plan: plan_seconds(n, m, each, plan),
    )


def roomy(
    n: int, m: int | None, each: Footprint, memory: int, kept: int, threads: int, schedule: str, extra: int
) -> Plan:
    """The same with `extra` bytes besides for each sample of a block, with which heads share passes back; without, where that
    is predicted to be no quicker."""
    usual = planned(n, m, each, memory, kept, threads, schedule)
    if not extra:
        return usual
    try:
        found = planned(n, m, each.sharing(extra), memory, kept, threads, schedule)
    except MemoryBudgetError:
        return usual
    gains = plan_seconds(n, m, each.sharing(extra), found) <= plan_seconds(n, m, each, usual)
    return found if gains else usual


def make_plan(n: int, m: int | None, each: Footprint, memory: int, kept: int = 1, threads: int = 1) -> Plan:
    """Features stay. Of `threads`, as many work on blocks of their own as leave room for nearly as many residents and for
    blocks worth it."""
    result = each.result(n, m, kept)
    available = each.slack * memory - result
    one = each.held(1, 1, 2 * LEAST_WORKSPACE)
    if available < one:
        what = f"for a result of {n} × {n if m is None else m} samples and the features of one"
        remedy = "raise memory=, choose fewer params=, outputs= or layers=, or keep the result on disk with store="
        raise over_budget(memory, (result + one) / each.slack * 1.01, what, remedy)
    side, most = min(n, m or n), max(n, m or n)
    if each.cuda:
        return _quickest(n, m, each, available, CUDA_WORKSPACE) or Plan(1, 1, LEAST_WORKSPACE)

    def rounds(plan: Plan) -> int:
        """How often the other side passes by."""
        return -(-side // max(1, plan.resident))

    alone = _fitted(side, most, each, available, 1)
    for workers in range(min(threads, CREW, most // CREW_BLOCK), 1, -1):
        together = _fitted(side, most, each, available, workers)
        if together.resident < 1 or together.block < min(CREW_BLOCK, alone.block):
            continue
        if together.resident >= 0.8 * alone.resident and (m is None or rounds(together) == rounds(alone)):
            return together
    return alone if alone.resident else Plan(1, 1, LEAST_WORKSPACE)


def _fitted(side: int, most: int, each: Footprint, available: float, workers: int) -> Plan:
    """The plan for so many workers, without residents where none fit; blocks are short enough that each worker has one."""
    workspace = int(max(LEAST_WORKSPACE, min(available / 8 / workers, 2**26 if workers == 1 else WORKSPACE)))
    room = available - workers * (workspace + each.worker)
    longest = min(each.largest_block, most if workers == 1 else -(-most // workers))

    def resident(block: int) -> int:
        return largest(side, lambda count: each.held(count, block, workspace, workers) <= available)

    for share in (0.4, 0.15):  # where not all can stay, smaller blocks leave room for more
        block = max(1, min(longest, int(room * share / workers / each.passing)))
        staying = resident(block)
        if staying >= side:
            break
    while staying < 1 and block > 1:
        block //= 2
        staying = resident(block)
    return Plan(staying, block, workspace, workers)


def _layers_plan(n: int, m: int | None, each: Footprint, memory: int, kept: int) -> Plan:
    result = each.result(n, m, kept)
    found = _quickest(n, m, each, each.slack * memory - result, CUDA_WORKSPACE if each.cuda else 2**26, layered=True)
    return found or _no_layers(memory, each, result, f"for a result of {n} × {m or n} samples and the factors of one")


# -- in a store ------------------------------------------------------------------------------------------------------


def cut_for(
    n: int, m: int | None, each: Footprint, memory: int, workers: int, rows: int = 1, schedule: str = "auto"
) -> Cut:
    """The cut of a new store, of the schedule that takes less time; `rows` of the matrix a sample."""
    each = replace(each, longest=each.longest or (CUDA_LONGEST if each.cuda else 0))
    return _quicker(
        schedule,
        each,
        lambda: make_cut(n, m, each, memory, workers, rows),
        lambda: _layers_cut(n, m, each, memory, rows),
        lambda cut: seconds(n, m, each, cut.plan),
    )


def make_cut(n: int, m: int | None, each: Footprint, memory: int, workers: int, rows: int = 1) -> Cut:
    """Features stay: on a CPU the largest tiles that fit `memory` with `workers` at work, of about the same size; `rows` of the
    matrix a sample.

    Where little fits, blocks get smaller before tiles do: a block is captured once for every row of tiles.
    """
    side, available, wanted = max(n, m or n), each.slack * memory, _largest_tile(n, m, each, rows)
    best = Cut(1, 1, LEAST_WORKSPACE)
    best.workers(each, memory, 1)  # an error where even this does not fit
    if each.cuda:
        found = _quickest(n, m, each, available, CUDA_WORKSPACE, tile=wanted)
        return best if found is None else Cut.of(found)
    workspace = int(max(LEAST_WORKSPACE, min(available / 8, WORKSPACE)))
    for count in range(max(1, workers), 0, -1):
        for share in (0.4, 0.15):
            fitting = int((available - workspace) * share / count / each.passing)
            block = max(1, min(each.largest_block, side, fitting))

            def fits(size: int, block: int = block, count: int = count) -> bool:
                return Cut(size, min(block, size), workspace).needs(each, count) <= available

            size = largest(wanted, fits)
            if size > best.size:
                best = Cut(size, min(block, size), workspace)
            if best.size == wanted:
                break
        if best.size >= min(wanted, each.largest_block):  # a second worker is worth more than the last sample
            break
    return best.even(side)


def _layers_cut(n: int, m: int | None, each: Footprint, memory: int, rows: int) -> Cut:
    usual, wanted = CUDA_WORKSPACE if each.cuda else WORKSPACE, _largest_tile(n, m, each, rows)
    found = _quickest(n, m, each, each.slack * memory, usual, tile=wanted, layered=True)
    if found is None:
        _no_layers(memory, each, each.result(1, None, COPIES), "for the factors of two samples")
    return Cut.of(found)


def _largest_tile(n: int, m: int | None, each: Footprint, rows: int) -> int:
    """Samples a side: not more than a reader holds, nor than take about a minute."""
    minute = isqrt(int((CUDA_WORK if each.cuda else WORK) / max(1.0, each.pair_cost)))
    cap = (CUDA_LARGEST if each.cuda else LARGEST) // rows
    return max(1, min(max(n, m or n), cap, max(minute, each.largest_block)))


# -- both ------------------------------------------------------------------------------------------------------------


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest count up to `most` that fits, by halving; 0 when none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def heads_at_once(width: int, enough: int, residents: Callable[[int], int]) -> int:
    """How many of `width` heads leave room for `enough` samples; `residents(heads)`: for how many they do, or an error.

    Where not even one head leaves room for so many, the most heads that fit at all.
    """
    size, best = width, 0
    while True:
        try:
            if residents(size) >= enough:
                return size
            best = best or size
        except MemoryBudgetError:
            if size == 1:
                raise
        if size == 1:
            return best
        size = -(-size // 2)


def _quicker(
    schedule: str, each: Footprint, blocks: Callable[[], T], layers: Callable[[], T], time: Callable[[T], float]
) -> T:
    """What the schedule asks for; of "auto", what takes less time."""
    check_schedule(schedule)
    if schedule == "layers":
        return layers()
    first = blocks()
    if schedule == "blocks" or not each.cuda or not each.formed:
        return first
    try:
        second = layers()
    except MemoryBudgetError:
        return first
    usual, less = time(first), time(second)
    if less > GAIN * usual:
        return first
    return replace(second, gain=usual / less) if isinstance(second, Plan) else second


def whole(length: int, most: int) -> int:
    """A side of at most `length` samples: all there are, or a multiple of what products are cut into."""
    return length if length >= most else length - length % next(part for part in WHOLE if part <= max(1, length))


def sides(most: int, fits: Callable[[int], object]) -> Iterator[int]:
    """The longest side that fits, and all shorter ones; all there are may fit where fewer, of which two have to meet, do not.

    >>> list(sides(200, lambda side: side < 140)), list(sides(9, bool))
    ([128, 64, 56, 48, 40, 32, 24, 16, 8, 7, 6, 5, 4, 3, 2, 1], [9, 8, 7, 6, 5, 4, 3, 2, 1])
    """
    side = most if fits(most) else whole(largest(most, lambda side: bool(fits(side))), most)
    while side > 0:
        yield side
        side = whole(side - 1, most)


def _quickest(
    n: int, m: int | None, each: Footprint, available: float, usual: int, *, layered: bool = False, tile: int = 0
) -> Plan | None:
    """What takes the least time of all that fits `available` bytes, an eighth of them, at most `usual`, for products, or a
    quarter of that.

    `tile`: the longest side of a store's tiles, which are squares, one of which is held; 0: the result is in memory, and its
    smaller side stays. Shorter sides are tried until they could not be quicker with room for all gradients.
    """
    n, m = (n, m) if tile or m is None else (min(n, m), max(n, m))
    side, most, square = tile or n, tile or m or n, bool(tile) or (layered and m is None)
    largest_workspace = int(max(LEAST_WORKSPACE, min(available / 8, usual)))
    workspaces = dict.fromkeys((largest_workspace, max(LEAST_WORKSPACE, largest_workspace // 4)))
    best, least = None, float("inf")

    def offered(workspace: int, length: int, rows: int, columns: int = 0) -> Plan | None:
        """With all that is left for gradients, and the fewest columns unless they are given; None where it does not fit."""
        columns = columns or (rows if square else 1 if layered else most)
        left, block = available - (each.result(rows, None, COPIES) if tile else 0), min(length, max(rows, columns))
        if not layered:
            return Plan(rows, block, workspace) if each.held(rows, block, workspace) <= left else None
        met = 0 if m is None and not tile and rows >= n else columns
        if each.cache(rows, met, block, each.least_to_form(rows, met, block), workspace) > left:
            return None
        return Plan(rows, block, workspace, 1, columns, each.left_to_form(rows, met, block, workspace, left))

    def ideal(length: int, rows: int, columns: int) -> float:
        forming = layered * (rows + columns) * max(1, each.formed)
        return seconds(n, m, each, Plan(rows, min(length, max(rows, columns)), 0, 1, columns, forming))

    longest, alone = min(each.largest_block, max(n, m or n)), max(1, each.passing - each.extra)
    lengths = {min(block, longest) for block in BLOCKS if block * alone <= max(alone, PASSING * available)}
    for workspace, length in product(workspaces, sorted(lengths, reverse=True)):
        made = partial(offered, workspace, length)
        for rows in sides(side, made):
            if ideal(length, rows, rows if square else most) >= least:
                break
            for columns in [rows] if square else sides(most, partial(made, rows)) if layered else [most]:
                if ideal(length, rows, columns) >= least:
                    break
                plan = made(rows, columns)
                if plan is not None and (time := seconds(n, m, each, plan)) < least:
                    best, least = plan, time
    return best


def _no_layers(memory: int, each: Footprint, result: int, what: str) -> NoReturn:
    """An error that states a budget with which two samples fit beside the result, an eighth of it for products."""
    needed = result + (each.cache(1, 1, 1, 2 * max(1, each.formed), 0) * 8 / 7 + LEAST_WORKSPACE)
    raise over_budget(memory, needed / each.slack * 1.01 + 1, what, 'raise memory=, or use schedule="blocks"')


def plan_seconds(n: int, m: int | None, each: Footprint, plan: Plan) -> float:
    """That of the smaller side, which stays."""
    return seconds(min(n, m or n), None if m is None else max(n, m), each, plan)


def seconds(n: int, m: int | None, each: Footprint, plan: Plan) -> float:
    """What a plan is predicted to take on an H200: samples run, gradients formed, pairs multiplied.

    n inputs with themselves, or n that stay with m others. Of other devices it says which of two plans is quicker.
    """
    size, others = plan.resident, n if m is None else m
    rounds = -(-n // size)  # each with `size` samples that stay, and the last with the rest
    # once for each round: rows and columns of all tiles
    ran = rounds * n - size * rounds * (rounds - 1) // 2 if m is None else n + rounds * others
    pairs = n * (n + 1) / 2 if m is None else float(n) * others
    if not plan.layered:
        width, formed = min(plan.block, others), ran * each.forming_cost
    else:
        across = plan.columns or size
        late: float = rounds * n if m is None else n * -(-others // across) + rounds * others  # in every tile
        at_once = ran - _passed(n, m, size, across, rounds)
        samples = min(n, size) + (0 if m is None and size >= n else across)
        if each.divided and samples * each.least <= plan.forming:
            width = across
            late += AGAIN * late * (-(-samples * each.formed // plan.forming) - 1)
        else:
            room = plan.forming // max(1, each.formed)  # for gradients of so many samples
            width = max(1, min(across, NARROW, room // 2))
            late += LARGE * late * (-(-min(n, size) // max(plan.block, room - NARROW)) - 1) / 2
        formed = at_once * max(0.0, each.forming_cost - each.again_cost) + late * each.again_cost
        ran = at_once
    speed = SPEEDS[each.made_of]
    products = pairs * each.pair_cost * (1 + speed.ridge / width) / speed.products
    run = ran * (each.capture_cost / speed.running + BLOCK_SECONDS / plan.block)
    return run + formed / speed.forming + products


def _passed(n: int, m: int | None, size: int, across: int, rounds: int) -> int:
    """Samples that need not be run again in the order of `Grid.path`: the rows of all rounds but the first are columns of the
    tile before; of two sets, the columns where a round begins are those where the last one ended."""
    if m is None:
        return n - size if rounds > 1 else 0
    last = m - (-(-m // across) - 1) * across
    return rounds // 2 * last + (rounds - 1) // 2 * min(across, m)

"""The plan: how many samples are held at once, so that a run stays inside its memory budget.

Features of some samples stay while blocks of others pass by. In memory the whole result is held, and as many samples stay
as fit beside it (`make_plan`); for a store one tile is held at a time, and the cut into tiles is chosen once, when the store
is begun, and kept there (`make_cut`): the same tile is then computed by the same sums whoever does it, whenever, and with
whatever memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isqrt
from typing import Any

from ntkscope.core.errors import MemoryBudgetError, StoreError
from ntkscope.core.sizes import over_budget, show_bytes
from ntkscope.tangent.blocks.deferred import Deferral, forming_cost
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock

SLACK, CUDA_SLACK = 0.8, 0.92  # of the budget: what allocators keep and libraries take for scratch is not ours to count
CPU_BLOCK, CUDA_BLOCK, CUDA_LONGEST = 128, 256, 512  # samples of a block; the last, of a store
CREW_BLOCK = 16  # samples of a block from which on a thread of its own is worth it
CREW = 16  # threads at blocks of their own; what Python does between products is done by one at a time
LARGEST, CUDA_LARGEST = 2048, 8192  # rows of a tile: what a run that is killed loses, and what a reader holds
WORK, CUDA_WORK = 2**40, 2**52  # multiply-adds of a tile: below a minute on two cores, on a GPU
WORKSPACE, CUDA_WORKSPACE, LEAST_WORKSPACE = 2**24, 2**32, 2**21
COPIES = 3  # of a tile while it is made and written
FEW, FEW_STORED = 16, 4  # samples that stay, or of a tile, below which heads are taken in smaller groups


WHOLE = (64, 8)  # samples: products of other lengths take several times longer on tensor cores


@dataclass(frozen=True)
class Footprint:
    """What one sample takes, in bytes: `feature` while it stays, `passing` while its block is captured and formed.

    A pair of samples has `pairs` numbers of `itemsize` bytes in the result and costs `pair_cost` multiply-adds. `worker`:
    what each thread at blocks of its own takes besides them.

    Where gradients can be formed later (`deferred`): `kept` bytes while the factors stay, `formed` bytes of one layer's
    gradient, `least` bytes of as few of its rows as are formed at a time (0: of all), `caching` bytes while a block is
    captured whose gradients have room of their own (0: as `passing`), `check` bytes for each block that is not compared with
    autograd yet. `capture_cost`, `forming_cost` and
    `again_cost` are multiply-adds a sample: of running it, of forming its features, and of those that are formed later.
    `short`: features are of 16 bits, whose products are quick beside everything else.
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
    short: bool = False
    capture_cost: float = 0.0
    forming_cost: float = 0.0
    again_cost: float = 0.0
    longest: int = 0  # samples of a block at most; 0: the usual number

    @property
    def slack(self) -> float:
        """The share of a budget that is ours to fill."""
        return CUDA_SLACK if self.cuda else SLACK

    @property
    def largest_block(self) -> int:
        return self.longest or (CUDA_BLOCK if self.cuda else CPU_BLOCK)

    def whole(self, block: int, most: int) -> int:
        """A length of blocks of at most `most` samples; on a GPU, where the rest is slow, a multiple of what its products are
        cut into."""
        if self.cuda and block < most:
            block -= block % next((part for part in WHOLE if part <= block), 1)
        return max(1, block)

    def tile(self, rows: int, columns: int) -> int:
        """Bytes of the float64 tile between samples, and of the product that is added to it."""
        return 8 * rows * columns * self.pairs * 2

    def held(self, resident: int, block: int, workspace: int, workers: int = 1) -> int:
        """Bytes while `resident` samples stay and every worker has a block that passes by, and products with it."""
        passing = block * self.passing + self.tile(resident, block) + workspace + self.worker
        return resident * self.feature + workers * passing

    def cache(self, rows: int, columns: int, block: int, forming: int, workspace: int) -> int:
        """Bytes while the factors of `rows` and `columns` samples stay and `forming` bytes of gradients are formed of them."""
        blocks = -(-rows // block) + -(-columns // block)
        passing = block * (self.caching or self.passing)
        held = (rows + columns) * (self.kept or self.feature) + blocks * self.check + passing
        return held + forming + workspace + self.worker + self.tile(rows, columns or rows)


def footprint(
    made: Sequence[ParameterBlock],
    *,
    heads: int,
    full: bool,
    graph_bytes: int,
    input_bytes: int,
    arrived_bytes: int,
    itemsize: int,
    storage: int,
    factors: int,
    cuda: bool,
    worker: int = 0,
    deferral: Deferral | None = None,
    check: int = 0,
) -> Footprint:
    """Per sample: the features of every piece; while a block is captured, its graph, inputs and cotangents
    (`arrived_bytes` a head), and what making the largest feature takes."""
    feature = sum(piece.feature_numbers(heads) for piece in made) * storage
    capture = graph_bytes + input_bytes + arrived_bytes * heads
    forming = max((_forming(piece, heads, itemsize, storage, factors) for piece in made), default=0)
    cost = sum(piece.pair_cost(heads, full) for piece in made)
    plain = Footprint(feature, capture + forming, itemsize, heads**2 if full else 1, cost, cuda, worker)
    if deferral is None:
        return plain
    forward = sum(piece.forward_cost for piece in made)
    caching = max(
        (
            piece.forming_numbers(heads) * factors
            if piece in deferral.placed
            else _forming(piece, heads, itemsize, storage, factors)
            for piece in made
        ),
        default=0,
    )
    return replace(
        plain,
        kept=deferral.kept,
        formed=deferral.largest,
        least=deferral.least,
        caching=capture + caching if cuda else 0,
        short=storage == 2,
        check=check,
        capture_cost=float(forward * (1 + heads + 2 * bool(check))),  # one more pass back that checks, for weights too
        forming_cost=sum(forming_cost(piece, heads) for piece in made),
        again_cost=deferral.again,
    )


@dataclass(frozen=True)
class Plan:
    """`resident` samples keep their features while blocks of `block` samples pass by; `workspace` bytes for products.

    `workers` blocks pass by at once, each with a workspace of its own. With `forming` bytes, the schedule is "layers": factors
    of `resident` rows and `columns` columns stay, and gradients of one layer at a time are formed in so many bytes; `gain`:
    how many times less work that is than "blocks", by the estimate it was chosen by.
    """

    resident: int
    block: int
    workspace: int
    workers: int = 1
    columns: int = 0
    forming: int = 0
    gain: float = 0.0

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
        chosen = f"; {self.gain:.1f} times less work than blocks" if self.gain else ""
        return (
            f"layers: factors of {self.resident} × {self.columns} samples stay, run in blocks of {self.block}, gradients"
            f" formed layer by layer in {show_bytes(self.forming)}{chosen}"
        )


def make_plan(n: int, m: int | None, each: Footprint, memory: int, kept: int = 1, threads: int = 1) -> Plan:
    """Fit (n, m) into `memory`; m None for one set of inputs with itself. `kept`: copies of the result that are held.

    Of `threads`, as many work on blocks of their own as leave room for nearly as many residents and for blocks worth it.
    """
    result = n * (n if m is None else m) * each.pairs * each.itemsize * kept
    available = each.slack * memory - result
    one = each.held(1, 1, 2 * LEAST_WORKSPACE)
    if available < one:
        what = f"for a result of {n} × {n if m is None else m} samples and the features of one"
        remedy = "raise memory=, choose fewer params=, outputs= or layers=, or keep the result on disk with store="
        raise over_budget(memory, (result + one) / each.slack * 1.01, what, remedy)
    side, most = min(n, m or n), max(n, m or n)
    alone = _fitted(side, most, each, available, 1)
    for workers in range(min(threads, CREW, most // CREW_BLOCK), 1, -1):
        together = _fitted(side, most, each, available, workers)
        if together.resident < 1 or together.block < min(CREW_BLOCK, alone.block):
            continue
        if together.resident >= 0.8 * alone.resident and (m is None or _groups(side, together) == _groups(side, alone)):
            return together
    return alone if alone.resident else Plan(1, 1, LEAST_WORKSPACE)


def _groups(side: int, plan: Plan) -> int:
    """How often the other side passes by."""
    return -(-side // max(1, plan.resident))


def _fitted(side: int, most: int, each: Footprint, available: float, workers: int) -> Plan:
    """The plan for so many workers, without residents where none fit; blocks are short enough that each worker has one."""
    usual = 2**33 if each.cuda else 2**26 if workers == 1 else 2**24
    workspace = int(max(LEAST_WORKSPACE, min(available / 8 / workers, usual)))
    room = available - workers * (workspace + each.worker)
    longest = min(each.largest_block, most if workers == 1 else -(-most // workers))

    def resident(block: int) -> int:
        return largest(side, lambda count: each.held(count, block, workspace, workers) <= available)

    for share in (0.4,) if each.cuda else (0.4, 0.15):  # where not all can stay, smaller blocks leave room for more
        block = each.whole(min(longest, int(room * share / workers / each.passing)), most)
        staying = resident(block)
        if staying >= side:
            break
    while staying < 1 and block > 1:
        block //= 2
        staying = resident(block)
    return Plan(staying, block, workspace, workers)


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

    def needs(self, each: Footprint, workers: int = 1) -> int:
        """Bytes: the rows' features, the tile, and for every worker a block that passes by and its products."""
        tile = COPIES * self.size**2 * each.pairs * each.itemsize
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

    def __str__(self) -> str:
        grouped = f", {self.heads} heads at a time" if self.heads else ""
        layers = f", layer by layer in {self.forming} bytes" if self.forming else ""
        return f"tiles of {self.size} samples, blocks of {self.block}, {self.workspace} bytes for products{grouped}{layers}"

    def to_json(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, values: Any, where: str) -> Cut:
        """A cut that a store kept; anything else is refused."""
        names = ("size", "block", "workspace")
        whole = isinstance(values, Mapping) and all(
            type(values.get(name, 1)) is int and values.get(name, 1) >= 1 for name in (*names, "heads", "forming")
        )
        if not whole or any(name not in values for name in names):
            raise StoreError(
                f"{where} does not say how its tiles were cut (got {values!r}); expected one written by ns.kernel or"
                " `ntkscope kernel`: choose another folder"
            )
        return cls(
            values["size"], values["block"], values["workspace"], values.get("heads", 0), values.get("forming", 0)
        )


def make_cut(n: int, m: int | None, each: Footprint, memory: int, workers: int, rows: int = 1) -> Cut:
    """The largest tiles that fit `memory` with `workers` at work, of about the same size; `rows` of the matrix a sample.

    Where little fits, blocks get smaller before tiles do: a block is captured once for every row of tiles.
    """
    side = max(n, m or n)
    cap = (CUDA_LARGEST if each.cuda else LARGEST) // rows
    wanted = max(1, min(side, cap, work_side(each)))
    usual = CUDA_WORKSPACE if each.cuda else WORKSPACE
    available = each.slack * memory
    workspace = int(max(LEAST_WORKSPACE, min(available / 8, usual)))
    best = Cut(1, 1, LEAST_WORKSPACE)
    best.workers(each, memory, 1)  # an error where even this does not fit
    for count in range(max(1, workers), 0, -1):
        for share in (0.4, 0.15):
            fitting = int((available - workspace) * share / count / each.passing)
            block = each.whole(min(each.largest_block, side, fitting), side)
            size = largest(wanted, _fitting(block, workspace, each, available, count))
            if size > best.size:
                best = Cut(size, min(block, size), workspace)
            if best.size == wanted:
                break
        if best.size >= min(wanted, each.largest_block):  # a second worker is worth more than the last sample
            break
    return even(best, side)


def work_side(each: Footprint) -> int:
    """The rows of a tile that takes about a minute."""
    work = isqrt(int((CUDA_WORK if each.cuda else WORK) / max(1.0, each.pair_cost)))
    return max(work, each.largest_block)


def _fitting(block: int, workspace: int, each: Footprint, available: float, workers: int) -> Callable[[int], bool]:
    return lambda size: Cut(size, min(block, size), workspace).needs(each, workers) <= available


def even(cut: Cut, side: int) -> Cut:
    """As many tiles of about the same size instead of whole ones and a rest, whole blocks where that is no more."""
    even = -(-side // -(-side // cut.size))
    whole = -(-even // cut.block) * cut.block
    return replace(cut, size=whole if whole <= min(cut.size, side) else even)


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


def _forming(piece: ParameterBlock, heads: int, itemsize: int, storage: int, factors: int) -> int:
    """Bytes a sample needs while a feature is made: its factors, the gradient, and the gradient as it is stored."""
    feature = piece.feature_numbers(heads)
    formed = feature * factors
    func = 2 * heads * piece.numbers * itemsize * (piece.method == "func")
    return piece.forming_numbers(heads) * factors + formed + feature * storage + func

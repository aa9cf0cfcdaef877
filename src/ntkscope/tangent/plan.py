"""The plan: how many samples are held at once, so that a run stays inside its memory budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ntkscope.core import MemoryBudgetError
from ntkscope.core.sizes import show_bytes
from ntkscope.tangent.pieces import Piece

SLACK, CUDA_SLACK = 0.8, 0.92  # of the budget: what allocators keep and libraries take for scratch is not ours to count
CPU_BLOCK, CUDA_BLOCK = 128, 256
CREW_BLOCK = 16  # samples of a block from which on a thread of its own is worth it
CREW = 16  # threads at blocks of their own; what Python does between products is done by one at a time


@dataclass(frozen=True)
class Footprint:
    """What one sample takes, in bytes: `feature` while it stays, `passing` while its block is harvested and formed.

    A pair of samples has `pairs` numbers of `itemsize` bytes in the result and costs `pair_cost` multiply-adds. `worker`:
    what each thread at blocks of its own takes besides them.
    """

    feature: int
    passing: int
    itemsize: int
    pairs: int = 1
    pair_cost: float | int = 1.0
    cuda: bool = False
    worker: int = 0

    @property
    def slack(self) -> float:
        """The share of a budget that is ours to fill."""
        return CUDA_SLACK if self.cuda else SLACK

    @property
    def largest_block(self) -> int:
        return CUDA_BLOCK if self.cuda else CPU_BLOCK

    def tile(self, rows: int, columns: int) -> int:
        """Bytes of the float64 tile between samples, and of the product that is added to it."""
        return 8 * rows * columns * self.pairs * 2


def footprint(
    made: Sequence[Piece],
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
) -> Footprint:
    """Per sample: the features of every piece; while a block is harvested, its graph, inputs and cotangents
    (`arrived_bytes` a head), and what making the largest feature takes."""
    feature = sum(piece.feature_numbers(heads) for piece in made) * storage
    harvest = graph_bytes + input_bytes + arrived_bytes * heads
    forming = max((_forming(piece, heads, itemsize, storage, factors) for piece in made), default=0)
    cost = sum(piece.pair_cost(heads, full) for piece in made)
    return Footprint(feature, harvest + forming, itemsize, heads**2 if full else 1, cost, cuda, worker)


@dataclass(frozen=True)
class Plan:
    """`resident` samples keep their features while blocks of `block` samples pass by; `workspace` bytes for products.

    `workers` blocks pass by at once, each with a workspace of its own.
    """

    resident: int
    block: int
    workspace: int
    workers: int = 1


def make_plan(n: int, m: int | None, each: Footprint, memory: int, kept: int = 1, threads: int = 1) -> Plan:
    """Fit (n, m) into `memory`; m None for one set of inputs with itself. `kept`: copies of the result that are held.

    Of `threads`, as many work on blocks of their own as leave room for nearly as many residents and for blocks worth it.
    """
    result = n * (n if m is None else m) * each.pairs * each.itemsize * kept
    feature, passing = each.feature, each.passing
    available = each.slack * memory - result
    least = (result + (feature + passing) + each.worker + 4 * 2**20) / each.slack
    if available < feature + passing + each.worker + 4 * 2**20:
        raise MemoryBudgetError(
            f"memory={show_bytes(memory)} came, but the result takes {show_bytes(result)} and one sample"
            f" {show_bytes(feature + passing + each.worker)}; the smallest budget that works is {show_bytes(least * 1.01)}"
            f" ({int(least * 1.01)} bytes): raise memory=, choose fewer params= or outputs=, or keep the result on disk"
            " with store="
        )
    side, most = min(n, m or n), max(n, m or n)
    alone = _fitted(side, most, each, available, 1)
    for workers in range(min(threads, CREW, most // CREW_BLOCK), 1, -1):
        together = _fitted(side, most, each, available, workers)
        if together.resident < 1 or together.block < min(CREW_BLOCK, alone.block):
            continue
        if together.resident >= 0.8 * alone.resident and (m is None or _groups(side, together) == _groups(side, alone)):
            return together
    return replace(alone, resident=max(1, alone.resident))


def _groups(side: int, plan: Plan) -> int:
    """How often the other side passes by."""
    return -(-side // max(1, plan.resident))


def _fitted(side: int, most: int, each: Footprint, available: float, workers: int) -> Plan:
    """The plan for so many workers, without residents where none fit; blocks are short enough that each worker has one."""
    usual = 2**33 if each.cuda else 2**26 if workers == 1 else 2**24
    workspace = int(max(2**21, min(available / 8 / workers, usual)))
    room = available - workers * (workspace + each.worker)
    longest = min(each.largest_block, most if workers == 1 else -(-most // workers))
    for share in (
        (0.4,) if each.cuda else (0.4, 0.15)
    ):  # where not all can stay, smaller blocks leave room for more residents
        block = max(1, min(longest, int(room * share / workers / each.passing)))
        resident = _resident(room, block, each, workers)
        if resident >= side:
            break
    while resident < 1 and block > 1:
        block //= 2
        resident = _resident(room, block, each, workers)
    return Plan(max(0, min(side, resident)), block, workspace, workers)


def _resident(room: float, block: int, each: Footprint, workers: int) -> int:
    """Samples whose features fit beside blocks that pass by and the float64 tiles between the two."""
    return int((room - workers * block * each.passing) / (each.feature + workers * each.tile(1, block)))


def _forming(piece: Piece, heads: int, itemsize: int, storage: int, factors: int) -> int:
    """Bytes a sample needs while a feature is made: its factors, the gradient, and the gradient as it is stored."""
    feature = piece.feature_numbers(heads)
    formed = feature * factors
    func = 2 * heads * piece.numbers * itemsize * (piece.road == "func")
    return piece.forming_numbers(heads) * factors + formed + feature * storage + func

"""Projecting all inputs, block by block, inside a memory budget."""

from __future__ import annotations

from torch import Tensor

from ntkscope.core.sizes import over_budget
from ntkscope.kernels._sketch import Sketch
from ntkscope.kernels._sketching import (
    Room,
    all_tables,
    one_product,
    product_numbers,
    project_block,
    structured_room,
    table_bytes,
)
from ntkscope.kernels._sparse_blocks import Tables
from ntkscope.kernels.registry import Request
from ntkscope.linalg.grams.assembly import RowBlocks
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.kernel.plan import SLACK
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock

TABLES = 1 / 16  # of what is left besides one sample: for a projection that is kept from block to block
BLOCK = {"cpu": 256, "cuda": 512}  # samples projected together; a projection is drawn once per block


def project(engine: Engine, request: Request, x: Batch, sketch: Sketch) -> Tensor:
    """The projected gradients of every sample, (n, heads, dim)."""
    n, width = len(x), engine.width * sketch.dim
    room = blocks(engine, request.memory, sketch, n)
    tables = Tables(room.tables)
    engine.spare = max(0.0, _left(engine, request.memory, sketch, n, room))
    engine.execution.begin(-(-n // room.block))

    def compute(rows: slice) -> Tensor:
        return project_block(engine, engine.capture(x[rows]), sketch, room, tables).flatten(1)

    made = RowBlocks(compute, n, width, room.block, engine.dtype, engine.device)
    return made.stacked("projection", request.progress).unflatten(1, (engine.width, sketch.dim))


def blocks(engine: Engine, memory: int, sketch: Sketch, kept: int) -> Room:
    """Samples a block and what is made at a time for them, so that all fits beside `kept` samples' features."""
    size, dim = engine.subject.dtype.itemsize, sketch.dim
    features = kept * engine.width * dim * size
    cuda = engine.subject.device.type == "cuda"
    each = _each(engine, sketch)
    held, inner = structured_room(engine, sketch)
    least = each + _fixed(engine, sketch, 64, held, inner)
    room = (memory - features) * SLACK
    if room < least:
        needed = features + least / SLACK
        raise over_budget(memory, needed * 1.01, f"for {kept} projected samples", "raise memory= or lower dim=")
    longest = 2**16 if cuda else 2**13  # fewer, longer products for a GPU
    rows = int(max(64, min(longest, room / 4 / (dim * (size + 8)))))
    if not sketch.dense:
        held, inner = structured_room(engine, sketch, (room - least) / 3)  # and a third for more samples
    fixed = _fixed(engine, sketch, rows, held, inner)
    tables = 0
    if not sketch.dense and kept > 1:
        tables = int(min(all_tables(engine, sketch), max(0, room - fixed - each) * TABLES))
    block = max(1, min(BLOCK.get(engine.subject.device.type, 256), int((room - fixed - tables) / each)))
    return Room(block, rows, held, inner, tables if kept > block else 0)


def _left(engine: Engine, memory: int, sketch: Sketch, kept: int, room: Room) -> float:
    """Bytes that nothing else takes while blocks are projected."""
    features = kept * engine.width * sketch.dim * engine.subject.dtype.itemsize
    fixed = _fixed(engine, sketch, room.rows, room.held, room.inner) + room.tables
    return (memory - features) * SLACK - fixed - room.block * _each(engine, sketch)


def check_room(engine: Engine, sketch: Sketch, room: Room, memory: int) -> None:
    """An error that says the smallest budget where blocks and steps that were chosen earlier do not fit."""
    needed = (room.block * _each(engine, sketch) + _fixed(engine, sketch, room.rows, room.held, room.inner)) / SLACK
    if needed > 1.01 * memory:
        what = f"for a store begun with chunks of {room.block} samples"
        raise over_budget(memory, needed, what, "raise memory=, or begin a new store, which chooses less")


def _each(engine: Engine, sketch: Sketch) -> int:
    """Bytes of a sample while its block is projected."""
    size = engine.subject.dtype.itemsize

    def sample_bytes(piece: ParameterBlock) -> int:
        formed = 0 if piece.name in sketch.kronecker and piece.method != "func" else 3 * engine.width * piece.numbers
        if one_product(engine, sketch, piece):
            formed = piece.inside + 2 * engine.width * sketch.dim
        return (piece.forming_numbers(engine.width) + formed + product_numbers(engine, sketch, piece)) * size

    func = sum(2 * engine.width * piece.numbers for piece in engine.pieces if piece.method == "func")
    each = engine.probed.graph_bytes + engine.prepared_bytes + engine.width * engine.arrived_bytes + func * size
    return each + max(map(sample_bytes, engine.pieces)) + engine.width * sketch.dim * size * (1 if sketch.dense else 3)


def _fixed(engine: Engine, sketch: Sketch, rows: int, held: int, inner: int) -> int:
    """Bytes of signs, places and products, whatever the block."""
    row = sketch.dim * (engine.subject.dtype.itemsize + 8)
    return rows * row if sketch.dense else 64 * row + table_bytes(engine, sketch, held, inner)

"""Projecting the gradients of a block of samples: dense, sparse, or factored without forming them.

A projection is a fixed linear map of each parameter's gradient, drawn from the seed and the parameter's name; how a gradient
was found, and whether it was ever formed, changes nothing but the rounding. A parameter of three or more axes is taken with
its second axis innermost, as the patches of a convolution are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.kernels._sketch import Sketch
from ntkscope.kernels._sparse_blocks import SparseBlocks, Tables, offset_of, sparse_bytes
from ntkscope.linalg.grams.gram import slices
from ntkscope.linalg.sketches.kronecker import KroneckerSketch
from ntkscope.linalg.sketches.sketch import KINDS, STRUCTURED, projection_rows
from ntkscope.linalg.sketches.sparse import check_sparsity
from ntkscope.tangent.blocks.backward import BackwardPass
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.trace.parameter_blocks import ELEMENTWISE, ParameterBlock
from ntkscope.tangent.trace.terms import Forming, Term

INNER = {"cpu": 1024, "cuda": 4096}  # coordinates of a block that are multiplied together, at most
HELD = {"cpu": 1 << 23, "cuda": 1 << 28}  # numbers of factored products held at a time, at most
LEAST_INNER, LEAST_HELD = 64, 1 << 18  # where the room is little
HELD_COPIES = 3  # of them, their signs and scratch included
NARROWEST = 64  # columns of a factored projection are made at least so many at a time


class Room(NamedTuple):
    """How much is in memory at a time; of the numbers it changes the rounding, nothing else."""

    block: int  # samples
    rows: int  # of a dense projection
    held: int  # numbers of factored products
    inner: int  # coordinates of a block of a sparse projection
    tables: int = 0  # bytes of a sparse projection that are kept from block to block


def make_sketch(
    engine: Engine, kind: str, dim: int, seed: int, sparsity: int | None, kronecker: frozenset[str] | None = None
) -> Sketch:
    """The sketch that was asked for; which parameters are factored follows from shapes alone, unless it is given."""
    if kind not in (*KINDS, *STRUCTURED):
        raise UsageError(f"got kind={kind!r}; expected one of {', '.join((*KINDS, *STRUCTURED))}")
    if kind in KINDS:
        if sparsity is not None:
            raise UsageError(f"got sparsity={sparsity} with kind={kind!r}, which is dense; leave it out")
        return Sketch(kind, dim, seed)
    chosen = check_sparsity(dim, sparsity)
    if kind == "sparse":
        return Sketch(kind, dim, seed, chosen)
    return Sketch(kind, dim, seed, chosen, _factored(engine, dim, chosen) if kronecker is None else kronecker)


def _factored(engine: Engine, dim: int, sparsity: int) -> frozenset[str]:
    """The parameters for which projecting both sides of the outer product is less work than forming their gradient.

    In multiply-adds a sample, with s positions, i and o the two sides, c heads: `s (i + c o) dim` against
    `c i o (s + sparsity)`, each with the elementwise passes it makes.
    """
    c = engine.width
    factored, formed = dict.fromkeys(engine.subject.leaves, 0.0), dict.fromkeys(engine.subject.leaves, 0.0)
    for piece in engine.pieces:
        outer = piece.inside > 1 or piece.method in ("kronecker", "positions")
        if piece.method == "func" or piece.groups > 1 or not outer:
            factored[piece.name] = float("inf")
        sides = piece.inside + c * (piece.outside + ELEMENTWISE)
        factored[piece.name] += float(piece.positions) * sides * dim
        formed[piece.name] += float(c) * piece.numbers * (piece.positions + sparsity + 2 * ELEMENTWISE)
    return frozenset(name for name in factored if factored[name] < formed[name])


def project_block(
    engine: Engine, backward_pass: BackwardPass, sketch: Sketch, room: Room, tables: Tables | None = None
) -> Float[Tensor, "n heads dim"]:
    """The projected gradients (n, heads, dim) of captured samples, however many they are; `tables` serve all blocks.

    Where the block is under audit, what autograd says of random sums of them, and of one sample alone, is projected beside
    them, as two rows more: the projection is linear, so the same sums of projected gradients must come out.
    """
    rows = backward_pass.n * engine.width
    if sketch.dense:
        made = _dense(engine, backward_pass, sketch, room.rows)
    else:
        made = _structured(engine, backward_pass, sketch, room, tables or Tables(0))
    if backward_pass.check is not None:
        with engine.judging(backward_pass):
            engine.auditor.finish_projected(
                backward_pass.check,
                made[:rows],
                made[rows:],
                lambda: ((piece, _formed(backward_pass, piece)) for piece in engine.pieces),  # which ones are wrong
                engine.loops,
            )
    return made[:rows].unflatten(0, (backward_pass.n, engine.width))


def _formed(backward_pass: BackwardPass, piece: ParameterBlock) -> Float[Tensor, "rows numbers"]:
    """The gradients of a piece, (n · heads, numbers), in the order of its parameter."""
    known = backward_pass.func[piece.name] if piece.method == "func" else backward_pass.gradient(piece)
    return known.flatten(0, 1)


def _truth(
    engine: Engine, backward_pass: BackwardPass, piece: ParameterBlock, *, innermost: bool
) -> Float[Tensor, "2 numbers"] | None:
    """What autograd says of the sum of the block's gradients, and of one sample's alone, (2, numbers) of a piece; None where it
    was not asked."""
    if backward_pass.check is None:
        return None
    both = []
    for known in (backward_pass.check.truth, backward_pass.check.alone):
        whole = known[piece.name]
        rows = whole[piece.start : piece.stop] if whole.dim() else whole.reshape(1)
        both.append((rows.movedim(1, -1) if innermost and rows.dim() > 2 else rows).reshape(-1))
    return torch.stack(both).to(engine.subject.dtype)


def _with_truth(
    values: Float[Tensor, "rows numbers"], truth: Float[Tensor, "2 numbers"] | None
) -> Float[Tensor, "more numbers"]:
    return values if truth is None else torch.cat([values, truth.to(values.dtype)])


def _rows(engine: Engine, backward_pass: BackwardPass) -> int:
    """Of projected gradients, and of what they are compared with."""
    return backward_pass.n * engine.width + (0 if backward_pass.check is None else 2)


def _dense(engine: Engine, backward_pass: BackwardPass, sketch: Sketch, rows: int) -> Float[Tensor, "rows dim"]:
    """2 n · heads · parameters · dim flops; the projection is drawn `rows` rows at a time.

    A gradient that is one outer product `b ⊗ a` is not formed on a CPU: the sides are projected (`_add_outer`).
    """
    subject, rounding, dim = engine.subject, engine.precision, sketch.dim
    total = torch.zeros(_rows(engine, backward_pass), dim, dtype=subject.dtype, device=subject.device)
    unit = torch.tensor(dim**-0.5, dtype=rounding.storage).double().item()  # all signs are rounded by one factor
    rounded = dim**-0.5 / unit if sketch.kind == "rademacher" and rounding.storage != subject.dtype else 1.0

    def table(piece: ParameterBlock, start: int, stop: int) -> Float[Tensor, "rows dim"]:
        first, how = offset_of(piece), (dim, sketch.kind, rounding.storage, subject.device)
        return projection_rows(sketch.seed, piece.name, first + start, first + stop, *how)

    for piece in engine.pieces:
        with engine.clock("gradients", piece):
            truth = _truth(engine, backward_pass, piece, innermost=False)
            outer = one_product(engine, sketch, piece)
            if not outer:
                values = _formed(backward_pass, piece).to(subject.dtype)  # a model may have parameters of several kinds
                values = _with_truth(values, truth)
        with engine.clock("projection", piece):
            if outer:
                _add_outer(total, *_sides(engine, backward_pass, piece), truth, partial(table, piece), rows)
                continue
            for at in range(0, piece.numbers, rows):
                stop = min(piece.numbers, at + rows)
                if rounding.storage == subject.dtype:
                    total.addmm_(values[:, at:stop], table(piece, at, stop))
                else:
                    stored, scale = rounding.store(values[:, at:stop])
                    made = rounding.product(stored, table(piece, at, stop).T)
                    total += made if scale is None else made * scale[:, None]
    if rounded != 1.0:
        total *= rounded
    return total


def one_product(engine: Engine, sketch: Sketch, piece: ParameterBlock) -> bool:
    """Whether a gradient is one outer product in the parameter's own order, whose sides a dense projection takes."""
    if not sketch.dense or engine.subject.device.type != "cpu" or engine.precision.storage != engine.subject.dtype:
        return False
    if (
        piece.method != "kronecker"
        or piece.positions * piece.groups * len(piece.members) > 1
        or piece.inside < LEAST_INNER
    ):
        return False
    k, t = piece.members[0]
    term = engine.probed.calls[k].terms[t]
    ordered = term.order is not None and not term.order.transposed and term.order.reorder is None
    return ordered and term.slot.start <= piece.start and piece.stop <= term.slot.stop


def _sides(
    engine: Engine, backward_pass: BackwardPass, piece: ParameterBlock
) -> tuple[Float[Tensor, "n i"], Float[Tensor, "n heads o"]]:
    """The two sides of `one_product`."""
    (k, t), dtype = piece.members[0], engine.subject.dtype
    a, b = backward_pass.sides(k, t)
    start = backward_pass.calls[k].terms[t].slot.start
    return a[:, 0, 0].to(dtype), b[:, 0, 0, :, piece.start - start : piece.stop - start].to(dtype)


def _add_outer(
    total: Float[Tensor, "rows dim"],
    a: Float[Tensor, "n i"],
    b: Float[Tensor, "n heads o"],
    truth: Float[Tensor, "2 numbers"] | None,
    table: Callable[[int, int], Float[Tensor, "rows dim"]],
    rows: int,
) -> None:
    """Add the projection of `b ⊗ a`: a is projected once for all heads, for each row of the parameter; and only of samples
    whose b is not 0 there, as behind a ReLU. At most 2 n · parameters · dim flops; as many rows as heads are added at a time.
    """
    (n, heads, height), inside = b.shape, a.shape[1]
    samples = total[: n * heads].view(n, heads, -1)
    for some in slices(height, heads):
        weights = b[:, :, some]
        projected = total.new_zeros(n, weights.shape[2], total.shape[1])
        for k, row in enumerate(range(some.start, some.stop)):
            active = weights[:, :, k].any(1).nonzero().flatten()
            for at in range(0, inside, rows):
                stop = min(inside, at + rows)
                first, last = row * inside + at, row * inside + stop
                left = _with_truth(a[active, at:stop], None if truth is None else truth[:, first:last])
                made = left @ table(first, last)
                projected[active, k] += made[: len(active)]
                total[n * heads :] += made[len(active) :]
        samples.baddbmm_(weights, projected)


def _structured(
    engine: Engine, backward_pass: BackwardPass, sketch: Sketch, room: Room, tables: Tables
) -> Float[Tensor, "rows dim"]:
    """2 n · heads · parameters · sparsity flops for what is formed, and what `_factored` counts for the rest."""
    subject, rows = engine.subject, backward_pass.n * engine.width
    total = torch.zeros(_rows(engine, backward_pass), sketch.dim, dtype=subject.dtype, device=subject.device)
    if any(piece.name in sketch.kronecker for piece in engine.pieces):
        for piece in engine.pieces:
            if piece.name in sketch.kronecker:
                with engine.clock("projection", piece):
                    samples = total[:rows].unflatten(0, (backward_pass.n, engine.width))
                    _kronecker(engine, backward_pass, piece, sketch, room.held, samples)
                    if (truth := _truth(engine, backward_pass, piece, innermost=True)) is not None:
                        drawn = _drawn(engine, piece, sketch)
                        _kronecker_formed(engine, piece, truth, drawn, room.held, total[rows:].unsqueeze(0))
        total *= sketch.dim**-0.5
    blocks = SparseBlocks(engine, len(total), sketch, room.inner, tables)
    for piece in engine.pieces:
        if piece.name not in sketch.kronecker:
            with engine.clock("gradients", piece):
                values = _gradient_and_truth(engine, backward_pass, piece)
            with engine.clock("projection", piece):
                blocks.add(piece, values)
    with engine.clock("projection"):
        return total.add_(blocks.finished(), alpha=sketch.sparsity**-0.5)


def _drawn(engine: Engine, piece: ParameterBlock, sketch: Sketch) -> KroneckerSketch:
    leaf = engine.subject.leaves[piece.name]
    return KroneckerSketch(sketch.seed, piece.name, len(leaf), leaf.numel() // len(leaf), sketch.dim)


def _kronecker(
    engine: Engine,
    backward_pass: BackwardPass,
    piece: ParameterBlock,
    sketch: Sketch,
    held: int,
    total: Float[Tensor, "n heads dim"],
) -> None:
    """Add the factored projection of a piece, without the factor of its signs; `held` numbers at a time."""
    leaf = engine.subject.leaves[piece.name]
    drawn = _drawn(engine, piece, sketch)
    terms = [backward_pass.calls[k].terms[t] for k, t in piece.members]
    if not terms or piece.groups > 1 or not all(term.factors for term in terms):
        values = _gradient(engine, backward_pass, piece).to(engine.subject.dtype)
        _kronecker_formed(engine, piece, values, drawn, held, total)
        return
    kept = engine.precision.storage if engine.precision.name == "bf16" else engine.subject.dtype
    for (k, t), term in zip(piece.members, terms):
        a, b = backward_pass.sides(k, t)
        b = b[:, 0]  # (n, s, heads, o): one group
        n, s, heads, o = b.shape
        b = b.reshape(-1, o).to(kept)
        looked_up = not a.is_floating_point()
        a = a.reshape(n * s) if looked_up else a.reshape(n * s, -1).to(kept)
        inner, outer = _places(term, leaf, a, o)
        for columns in drawn.pieces(held // (n * s * (heads + 1) + len(inner) + len(outer))):
            of_a = (drawn.rows if term.flipped else drawn.columns)(inner, columns, b.dtype)
            of_b = (drawn.columns if term.flipped else drawn.rows)(outer, columns, b.dtype)
            left = of_a.to(total.dtype) if looked_up else engine.precision.product(a, of_a.T)
            right = engine.precision.product(b, of_b.T).view(n, s, heads, -1)
            right = right.mul_(left.view(n, s, 1, -1))
            total[:, :, columns] += right[:, 0] if s == 1 else right.sum(1)


def _places(term: Term, leaf: Tensor, a: Tensor, o: int) -> tuple[Tensor, Tensor]:
    """Where in the parameter each entry of the two sides is: numbers along its first axis and along all others."""
    return term.places(a, o, _innermost(leaf).to(leaf.device))


def _kronecker_formed(
    engine: Engine,
    piece: ParameterBlock,
    values: Float[Tensor, "rows numbers"],
    drawn: KroneckerSketch,
    held: int,
    total: Float[Tensor, "n heads dim"],
) -> None:
    """The same map of a gradient (rows, numbers) that had to be formed: as much work as a dense projection."""
    leaf = engine.subject.leaves[piece.name]
    values = values.unflatten(1, (piece.stop - piece.start, -1))
    height = torch.arange(piece.start, piece.stop, device=leaf.device)
    width = torch.arange(values.shape[2], device=leaf.device)
    for columns in drawn.pieces(held // (values.shape[0] * len(height) + len(height) + len(width))):
        right = values @ drawn.columns(width, columns, values.dtype)
        left = drawn.rows(height, columns, values.dtype)
        total[:, :, columns] += right.mul_(left).sum(1).view(*total.shape[:2], -1)


def _gradient_and_truth(
    engine: Engine, backward_pass: BackwardPass, piece: ParameterBlock
) -> Float[Tensor, "rows numbers"]:
    """The gradients of a piece, and in two rows more what autograd says, where that is asked; formed where those rows stand
    beside them, since copies of all gradients cost as much as making them."""
    truth = _truth(engine, backward_pass, piece, innermost=True)
    if truth is None:
        return _gradient(engine, backward_pass, piece)
    rows = backward_pass.n * engine.width
    storage, device = engine.precision.storage, engine.subject.device
    room = torch.empty(rows + 2, piece.numbers, dtype=storage, device=device)
    values = _gradient(engine, backward_pass, piece, room[:rows])
    if values.data_ptr() != room.data_ptr():
        del room
        return _with_truth(values, truth)
    room[rows:] = truth
    return room


def _gradient(
    engine: Engine,
    backward_pass: BackwardPass,
    piece: ParameterBlock,
    room: Float[Tensor, "rows numbers"] | None = None,
) -> Float[Tensor, "rows numbers"]:
    """The gradients of a piece, (n · heads, numbers), second axis innermost, in the numbers that are projected or the model's
    own. `room`: where they may be written."""
    leaf = engine.subject.leaves[piece.name]
    asis = False  # whether its own order is that one
    if piece.method == "func":
        values = backward_pass.func[piece.name]
    else:
        terms = [backward_pass.calls[k].terms[t] for k, t in piece.members]
        asis = leaf.dim() > 2 and all(_is_innermost(term, leaf) for term in terms)
        out = None if room is None else room.view(backward_pass.n, engine.width, piece.numbers)
        values = backward_pass.gradient(piece, Forming(not asis, out))
    if leaf.dim() > 2 and not asis:
        values = values.unflatten(2, (piece.stop - piece.start, *leaf.shape[1:])).movedim(3, -1).flatten(2)
    values = values.flatten(0, 1)
    return values if values.dtype == engine.precision.storage else values.to(engine.subject.dtype)


def _is_innermost(term: Term, leaf: Tensor) -> bool:
    """Whether a term's own order is the one with the second axis innermost."""
    order = term.order
    if order is None or order.transposed or order.reorder is None:
        return False
    return torch.equal(order.reorder(torch.arange(prod(leaf.shape[1:]))), _innermost(leaf))


def _innermost(leaf: Float[Tensor, "..."]) -> Int[Tensor, " k"]:
    """For all but the first axis: where each entry stands when the second axis is innermost."""
    rest = leaf.shape[1:]
    if len(rest) < 2:
        return torch.arange(prod(rest))
    return torch.arange(prod(rest)).view(prod(rest[1:]), rest[0]).T.flatten()


def structured_room(engine: Engine, sketch: Sketch, share: float = 0) -> tuple[int, int]:
    """`held` and `inner` of a structured sketch that gets two shares of so many bytes beyond the least it needs."""
    size, device = engine.subject.dtype.itemsize, engine.subject.device.type
    leaves = engine.subject.leaves
    sides = max((len(leaves[name]) + leaves[name].numel() // len(leaves[name]) for name in sketch.kronecker), default=0)
    runs = (sketch.sparse(name, leaf.numel()).run for name, leaf in leaves.items())
    held, inner = max(LEAST_HELD, NARROWEST * sides), max([LEAST_INNER, *runs])
    more = int(share / (HELD_COPIES * size)), int(share / _inner_bytes(engine, sketch))
    most = HELD.get(device, HELD["cpu"]), INNER.get(device, INNER["cpu"])
    return max(held, min(most[0], held + more[0])), max(inner, min(most[1], inner + more[1]))


def all_tables(engine: Engine, sketch: Sketch) -> int:
    """Bytes of all places and signs of a sparse projection."""
    size, leaves = engine.precision.storage.itemsize, engine.subject.leaves
    pieces = (piece for piece in engine.pieces if piece.name not in sketch.kronecker)
    drawn = ((piece, leaves[piece.name].numel()) for piece in pieces)
    return sum(sparse_bytes(sketch.sparse(piece.name, numel), piece.numbers, size) for piece, numel in drawn)


def table_bytes(engine: Engine, sketch: Sketch, held: int, inner: int) -> int:
    """What signs, places and factored products of a structured sketch take, whatever the block of samples."""
    longest = max((piece.numbers for piece in engine.pieces if piece.name not in sketch.kronecker), default=0)
    tables = min(inner, longest * sketch.sparsity // sketch.dim + 256) * _inner_bytes(engine, sketch)
    return tables + (HELD_COPIES * held * engine.subject.dtype.itemsize if sketch.kronecker else 0)


def product_numbers(engine: Engine, sketch: Sketch, piece: ParameterBlock) -> int:
    """Numbers of factored products a sample takes in the fewest columns that are made at a time."""
    if piece.name not in sketch.kronecker:
        return 0
    formed = piece.method == "func" or piece.groups > 1
    rows = engine.width * (piece.stop - piece.start) if formed else piece.positions * (engine.width + 1)
    return NARROWEST * rows


def _inner_bytes(engine: Engine, sketch: Sketch) -> int:
    """What one more coordinate a block takes in signs and places, and in what they are joined from."""
    size = engine.subject.dtype.itemsize
    return 2 * (sketch.dim // sketch.sparsity) * (sketch.sparsity * (2 * size + 1) + 40)

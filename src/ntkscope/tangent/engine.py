"""The engine: exact inner products of parameter gradients between two sets of inputs, block by block.

Features of some samples stay (the residents) while blocks of the others pass by; each block is harvested once per group
of residents. With one set of inputs only one triangle is computed. Sites accumulate in float64.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.progress import counter
from ntkscope.tangent import func_road, guards
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.capture import watch
from ntkscope.tangent.coverage import Coverage
from ntkscope.tangent.features import Feature, accumulate, self_products
from ntkscope.tangent.harvest import Harvest, PathChanged, harvest
from ntkscope.tangent.pieces import Piece, pieces
from ntkscope.tangent.plan import Plan, make_plan
from ntkscope.tangent.precision import Precision, tensor_cores
from ntkscope.tangent.probe import SAMPLES, Findings, probe
from ntkscope.tangent.subject import Subject


@dataclass(frozen=True)
class Heads:
    """Which outputs are differentiated: each of `outputs` (all when None), or their sum."""

    outputs: Sequence[int] | None = None
    summed: bool = False

    def __call__(self, values: Tensor) -> Tensor:
        if self.outputs is not None:
            values = values[:, list(self.outputs)]
        return values.sum(1, keepdim=True) if self.summed else values

    def count(self, width: int) -> int:
        """How many outputs are chosen of `width`; a wrong choice is refused."""
        chosen = list(range(width)) if self.outputs is None else list(self.outputs)
        bad = [k for k in chosen if not 0 <= k < width]
        if bad or not chosen:
            raise UsageError(
                f"outputs={chosen} came for a model with {width} outputs; expected some of 0 … {width - 1}"
            )
        return len(chosen)


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


class Engine:
    """One model, one choice of outputs and parameters; probes once, then contracts."""

    def __init__(
        self,
        subject: Subject,
        sample: Batch,
        heads: Heads,
        *,
        full: bool,
        precision: Precision,
        func: frozenset[str] = frozenset(),
        profile: bool = False,
    ) -> None:
        self.subject, self.heads, self.full, self.precision = subject, heads, full, precision
        self.profile = profile
        few = _few(sample).to(subject.device, subject.dtype) if subject.cast or subject.moved else _few(sample)
        self.input_bytes = sum(t[0].numel() * t.element_size() for t in few.tensors())
        with tensor_cores(False):
            outputs = guards.first_outputs(subject, few)
            self.chosen = heads.count(outputs.shape[1])
            self.width = 1 if heads.summed else self.chosen
            guards.check_independence(subject, few, outputs)
            found = probe(subject, few)
        self.findings = Findings(found.layouts, found.signatures, found.func | func)
        self.graph_bytes, calls = _graph_bytes(subject, few, self.findings)
        self.arrived_bytes = sum(
            call.shape.numel() // len(few) * (precision.factors if call.outer else subject.dtype).itemsize
            for call in calls
            if any(term.slot.name not in self.findings.func for term in call.terms)
        )
        self.pieces = pieces(subject, calls, self.findings, self.width, full, len(few))
        names = sorted(self.findings.func)
        self.func = func_road.choose(subject, few, names, heads)[0] if names else ""
        self.seconds = dict.fromkeys(subject.leaves, 0.0)
        self.stages: dict[str, float] = {}
        self.harvested = 0

    def harvest(self, batch: Batch) -> Harvest:
        batch = batch.to(self.subject.device, self.subject.dtype) if self.subject.cast or self.subject.moved else batch
        self.harvested += len(batch)
        with self.clock("harvest"):
            return harvest(self.subject, batch, self.findings, self.pieces, self.heads, self.func, self.precision)

    def plan(self, n: int, m: int | None, memory: int, kept: int = 1) -> Plan:
        """How a kernel of n inputs with themselves (m None) or with m others is cut to fit `memory` bytes."""
        return make_plan(
            n,
            m,
            self.pieces,
            heads=self.width,
            full=self.full,
            graph_bytes=self.graph_bytes,
            input_bytes=self.input_bytes,
            arrived_bytes=self.arrived_bytes,
            memory=memory,
            itemsize=self.subject.dtype.itemsize,
            storage=self.precision.storage.itemsize,
            factors=self.precision.factors.itemsize,
            kept=kept,
            cuda=self.subject.device.type == "cuda",
        )

    def feature(self, crop: Harvest, piece: Piece) -> Feature:
        with self.clock("features", piece):
            return crop.feature(piece, self.precision)

    @contextlib.contextmanager
    def clock(self, stage: str, piece: Piece | None = None) -> Iterator[None]:
        """Adds the time of its block to a stage and a parameter; a profiled run waits for the device on both ends."""
        began = self._now()
        yield
        spent = self._now() - began
        self.stages[stage] = self.stages.get(stage, 0.0) + spent
        if piece is not None:
            self.seconds[piece.name] += spent

    def _now(self) -> float:
        if self.profile and self.subject.device.type == "cuda":
            torch.cuda.synchronize(self.subject.device)
        return time.perf_counter()

    def coverage(self) -> Coverage:
        roads: dict[str, str] = dict.fromkeys(self.subject.leaves, "unused")
        for piece in self.pieces:
            known = roads[piece.name]
            roads[piece.name] = piece.road if known in ("unused", piece.road) else f"{known}+{piece.road}"
        numbers = {name: leaf.numel() for name, leaf in self.subject.leaves.items()}
        return Coverage(roads, numbers, dict(self.seconds), dict(self.stages), self.harvested, self.func)


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
    sample = x1 if x2 is None else _joined(x1, x2)
    func: frozenset[str] = frozenset()
    with road.context():
        while True:
            engine = Engine(subject, sample, heads, full=full, precision=road, func=func, profile=profile)
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
        for rows in _ranges(0, n, plan.resident):
            residents = _residents(engine, x1, rows, plan, sides[0] if x2 is not None else None)
            for start, stop, column in _columns(engine, residents, x1, x2, rows, plan, sides[-1]):
                _tile(
                    engine,
                    values,
                    parts,
                    residents,
                    rows,
                    start,
                    stop,
                    column,
                    plan,
                    symmetric=x2 is None,
                    inside=stop <= rows.stop,
                )
                bar.advance(len(rows) * (stop - start))
            del residents
    if not bool(torch.isfinite(values).all()):
        raise NumericalError(
            "the kernel holds NaN or infinity though the outputs are finite: a gradient overflowed or is undefined at some"
            f" input (layers: {_guilty(engine, x1)}); use dtype=torch.float64 or look at those layers"
        )
    rows_self = values.diagonal().double() if x2 is None else _flat(sides[0], engine.full)
    columns_self = rows_self if x2 is None else _flat(sides[1], engine.full)
    return Products(values, rows_self, columns_self, engine.coverage(), engine.chosen, parts, plan)


def _flat(side: Tensor, full: bool) -> Tensor:
    return side.flatten() if full else side.sum(1)


def _residents(engine: Engine, x: Batch, rows: range, plan: Plan, side: Tensor | None) -> dict[Piece, Feature]:
    held: dict[Piece, Feature] = {}
    for at in _ranges(rows.start, rows.stop, plan.block):
        crop = engine.harvest(x[at.start : at.stop])
        for piece in engine.pieces:
            feature = engine.feature(crop, piece)
            with engine.clock("features", piece):
                if len(rows) == len(at):
                    held[piece] = feature
                else:
                    if piece not in held:
                        held[piece] = feature.empty(len(rows))
                    held[piece].put(at.start - rows.start, feature)  # type: ignore[arg-type]
                if side is not None:
                    side[at.start : at.stop] += self_products(feature)
    return held


Column: TypeAlias = Callable[[Piece], Feature]


def _cut(residents: dict[Piece, Feature], inner: slice, piece: Piece) -> Feature:
    return residents[piece][inner]


def _columns(
    engine: Engine, residents: dict[Piece, Feature], x1: Batch, x2: Batch | None, rows: range, plan: Plan, side: Tensor
) -> Iterator[tuple[int, int, Column]]:
    """The blocks that pass by the residents: the residents themselves, then those after them; or all of `x2`."""
    if x2 is None:
        for at in _ranges(rows.start, rows.stop, plan.block):
            inner = slice(at.start - rows.start, at.stop - rows.start)
            yield at.start, at.stop, partial(_cut, residents, inner)
    passing, first = (x1, rows.stop) if x2 is None else (x2, 0)
    for at in _ranges(first, len(passing), plan.block):
        crop = engine.harvest(passing[at.start : at.stop])

        def column(piece: Piece, crop: Harvest = crop, at: range = at) -> Feature:
            feature = engine.feature(crop, piece)
            if x2 is not None and rows.start == 0:
                side[at.start : at.stop] += self_products(feature)
            return feature

        yield at.start, at.stop, column


def _tile(
    engine: Engine,
    values: Tensor,
    parts: dict[str, Tensor],
    residents: dict[Piece, Feature],
    rows: range,
    start: int,
    stop: int,
    column: Column,
    plan: Plan,
    *,
    symmetric: bool,
    inside: bool,
) -> None:
    """All pieces of one tile; inside the residents only the rows up to the block's end, the rest by symmetry."""
    mirror = symmetric and inside
    height = (stop if mirror else rows.stop) - rows.start
    size = engine.width if engine.full else 1
    total = torch.zeros(height * size, (stop - start) * size, dtype=torch.float64, device=values.device)
    for piece in engine.pieces:
        left, right = residents[piece][:height], column(piece)
        with engine.clock("products", piece):
            into = torch.zeros_like(total) if parts else total
            accumulate(into, left, right, full=engine.full, precision=engine.precision, workspace=plan.workspace)
        if parts:
            total += into
            _write(parts[piece.name], into, rows.start * size, start * size, symmetric, add=True)
    with engine.clock("writing"):
        _write(values, total, rows.start * size, start * size, symmetric)


def _write(values: Tensor, tile: Tensor, row: int, column: int, symmetric: bool, *, add: bool = False) -> None:
    height, width = tile.shape
    target = values[row : row + height, column : column + width]
    if symmetric and row + height > column:  # the tile crosses the diagonal: make its own square exactly symmetric
        square = tile[column - row :]
        square.copy_((square + square.T) / 2)
    if add:
        target += tile
    else:
        target.copy_(tile)
    if symmetric:
        above = column - row if row + height > column else height
        mirrored = values[column : column + width, row : row + above]
        if add:
            mirrored += tile[:above].T
        else:
            mirrored.copy_(tile[:above].T)


def _ranges(start: int, stop: int, size: int) -> Iterator[range]:
    for at in range(start, stop, size):
        yield range(at, min(stop, at + size))


def _tiles(n: int, m: int | None, plan: Plan) -> Iterator[tuple[range, range]]:
    for rows in _ranges(0, n, plan.resident):
        for columns in _ranges(rows.start if m is None else 0, n if m is None else m, plan.block):
            yield rows, columns


def _few(sample: Batch) -> Batch:
    """The probed samples: the first three, repeated if there are fewer."""
    index = torch.arange(SAMPLES, device=sample.tensors()[0].device) % len(sample)
    return sample.map(lambda t: t[index.to(t.device)])


def _joined(x1: Batch, x2: Batch) -> Batch:
    """Samples to probe from: of the first side, and of the second when the first is short and alike."""
    if len(x1) >= SAMPLES:
        return x1
    return x2 if len(x2) >= SAMPLES else x1


def _graph_bytes(subject: Subject, batch: Batch, findings: Findings) -> tuple[int, list]:
    """What autograd keeps for a sample between the forward and the backward pass, and the probed calls."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    own = {leaf.untyped_storage().data_ptr() for leaf in (*subject.leaves.values(), *subject.rest.values())}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        _, tape = watch(subject, batch, findings.layouts)
    size = sum(nbytes for pointer, nbytes in kept.items() if pointer not in own)
    return 2 * size // len(batch), tape.calls


def _guilty(engine: Engine, x: Batch) -> str:
    crop = engine.harvest(x[: min(len(x), 8)])
    names = [
        engine.subject.layer_of(piece.name)
        for piece in engine.pieces
        if not bool(torch.isfinite(self_products(crop.feature(piece, engine.precision))).all())
    ]
    return ", ".join(dict.fromkeys(names)) or "not among the first samples"

"""The sparse part of a projection: each block of its rows gathers its coordinates and multiplies them by their signs."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkscope.kernels._sketch import Sketch
from ntkscope.linalg.sketches.sparse import SparseSketch
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock

ALONE = 4  # times the sparsity: parts as long are multiplied by themselves, which is less work than copying them
WHOLE = 8  # coordinates: products of other lengths take several times longer on tensor cores
Parts = list[tuple[Tensor, Tensor]]  # places and signs of a sparse projection


class Tables:
    """Places and signs of sparse projections, kept from block to block as long as they fit into so many bytes."""

    def __init__(self, room: int) -> None:
        self.left = room
        self._kept: dict[tuple[SparseSketch, int, int], Parts] = {}

    def parts(
        self, drawn: SparseSketch, start: int, stop: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """`drawn.parts`; always for one width, dtype and device."""
        key = drawn, start, stop
        if key in self._kept:
            return self._kept[key]
        parts = drawn.parts(start, stop, width, dtype, device)
        needed = sparse_bytes(drawn, stop - start, dtype.itemsize)
        if needed > self.left:
            return parts
        self.left -= needed
        self._kept[key] = list(parts)
        return self._kept[key]


def sparse_bytes(drawn: SparseSketch, numbers: int, itemsize: int) -> int:
    """What places and signs of so many coordinates take; the first and last round of runs may be part of others."""
    return (numbers + 2 * drawn.blocks * drawn.run) * (drawn.sparsity * itemsize + 8)


class SparseBlocks:
    """The sparse part of a projection, block by block; short parts of several parameters are multiplied in one product."""

    def __init__(self, engine: Engine, rows: int, sketch: Sketch, width: int, tables: Tables) -> None:
        self._engine, self._sketch, self._rows, self._width, self._tables = engine, sketch, rows, width, tables
        self._blocks = sketch.dim // sketch.sparsity
        device, dtype = engine.subject.device, engine.subject.dtype
        self._total = torch.zeros(self._blocks, rows, sketch.sparsity, dtype=dtype, device=device)
        self._waiting: Parts = []
        self._alone = ALONE * sketch.sparsity

    def add(self, piece: ParameterBlock, values: Tensor) -> None:
        """Add the gradients (rows, numbers) of a piece."""
        engine, sketch = self._engine, self._sketch
        leaf = engine.subject.leaves[piece.name]
        drawn = sketch.sparse(piece.name, leaf.numel())
        stored, scale = engine.precision.store(values)
        start = offset_of(piece)
        stop, how = start + piece.numbers, (self._width, stored.dtype, leaf.device)
        for index, signs in self._tables.parts(drawn, start, stop, *how):
            gathered = _columns(stored, index.flatten(), gcd(drawn.run, start)).view(self._rows, self._blocks, -1)
            if scale is not None or signs.shape[1] >= self._alone:  # each piece has its own scale
                self._multiply([(gathered, signs)], scale)
                continue
            self._waiting.append((gathered, signs))
            if sum(part.shape[1] for _, part in self._waiting) >= self._alone:
                self._multiply(self._waiting)
                self._waiting = []

    def finished(self) -> Tensor:
        """(rows, dim), without the factor of the signs."""
        if self._waiting:
            self._multiply(self._waiting)
            self._waiting = []
        return self._total.transpose(0, 1).reshape(self._rows, -1)

    def _multiply(self, parts: Parts, scale: Tensor | None = None) -> None:
        values, signs = _side_by_side([v for v, _ in parts], 2), _side_by_side([s for _, s in parts], 1)
        values = values.transpose(0, 1)
        if values.dtype == self._total.dtype:
            self._total.baddbmm_(values, signs)
            return
        if values.is_cuda:
            made = torch.bmm(values, signs, out_dtype=torch.float32)
        else:
            made = torch.bmm(values.float(), signs.float())
        self._total += made if scale is None else made * scale[None, :, None]


def _side_by_side(parts: list[Tensor], axis: int) -> Tensor:
    """Several parts as one; on a GPU with zeros up to a whole multiple of what its products are cut into."""
    length = sum(part.shape[axis] for part in parts)
    more = -length % WHOLE if parts[0].is_cuda else 0
    if more:
        shape = list(parts[0].shape)
        shape[axis] = more
        parts = [*parts, parts[0].new_zeros(shape)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _columns(values: Float[Tensor, "rows numbers"], index: Int[Tensor, " k"], run: int) -> Float[Tensor, "rows k"]:
    """The columns `index` of `values`, which come in whole, aligned runs: eight bytes at a time where runs are long enough."""
    packed = 8 // values.element_size()
    if packed == 1 or run % packed or values.shape[1] % packed or not values.is_contiguous():
        return values.index_select(1, index)
    wide = values.view(torch.float64).index_select(1, index[::packed] // packed)
    return wide.view(values.dtype)


def offset_of(piece: ParameterBlock) -> int:
    """How many numbers of its parameter come before a piece."""
    return piece.start * (piece.numbers // (piece.stop - piece.start))

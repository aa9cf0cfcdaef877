"""Layer by layer: the factors of a whole tile are kept, one layer's gradients are formed at a time, multiplied and dropped.

Samples are run through the model once a tile, as in `contraction`, where formed gradients of all layers stay while blocks pass
by. Factors are smaller, so tiles are larger and samples are run less often; and one layer's gradients of many samples meet in
few large products. Where those of all samples do not fit, some rows of the parameter are formed at a time for all of them, or,
where rows cannot be told apart, all rows for some samples. Only the order of sums differs. Checks are the same: every block
against autograd, an entry of every block of columns of a new shape, and of one in eight others, computed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.tangent.blocks.backward import BackwardPass
from ntkscope.tangent.blocks.deferred import kept_factors
from ntkscope.tangent.blocks.features import DenseFeature, Feature, accumulate, self_products
from ntkscope.tangent.certify.auditor import GraphMismatch
from ntkscope.tangent.certify.spot_check import Spot
from ntkscope.tangent.kernel.plan import NARROW
from ntkscope.tangent.kernel.products import Features, Maker, mirror, place_feature, ranges
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.trace.parameter_blocks import ParameterBlock

ALIGNED = 512  # bytes, at which the columns' gradients begin


@dataclass(eq=False)
class FactorCache:
    """Consecutive samples: features of the pieces that are not deferred, factors of the others block by block.

    `side` (n, heads), where it is wanted: self products, complete when every piece was formed once.
    """

    n: int
    side: Tensor | None = None
    features: Features = field(default_factory=dict)
    blocks: dict[range, BackwardPass] = field(default_factory=dict)
    formed: set[tuple[range, ParameterBlock]] = field(default_factory=set)  # and checked
    done: set[range] = field(default_factory=set)  # blocks of which everything was

    def put(self, maker: Maker, x: Batch, at: range, *, check: bool, room: Tensor | None = None) -> None:
        """Run one block of `x`. `check`: form everything once, in `room` where there is one, and compare it now, not when it is
        used first."""
        backward_pass = maker.capture(x[at.start : at.stop])
        deferred = maker.deferral.pieces
        for piece in maker.pieces:
            if piece in deferred:
                continue
            feature = maker.feature(backward_pass, piece)
            with maker.clock("features", piece):
                self._keep(piece, feature, at)
        with maker.clock("features"):
            self.blocks[at] = kept_factors(backward_pass, deferred)
        del backward_pass
        if check:
            for piece in maker.pieces:
                for part in parts(maker, piece, len(at), 0 if room is None else len(room)) if piece in deferred else []:
                    self._form(maker, part, at, None if room is None else _space(maker, part, len(at), room))
            maker.settle(self.blocks[at])
            self.done.add(at)

    def _keep(self, piece: ParameterBlock, feature: Feature, at: range) -> None:
        if self.n == len(at):
            self.features[piece] = feature
        else:
            place_feature(self.features, piece, feature, at.start, self.n)
        self._meet(feature, at)

    def _meet(self, feature: Feature, at: range) -> None:
        if self.side is not None:
            self.side[at.start : at.stop] += self_products(feature)

    def _form(self, maker: Maker, piece: ParameterBlock, at: range, out: Tensor | None = None) -> Feature:
        """The gradients of one block; the first time, they are compared with autograd."""
        backward_pass, first = self.blocks[at], at not in self.done and (at, piece) not in self.formed
        feature = maker.feature(backward_pass if first else replace(backward_pass, check=None), piece, out)
        if first:
            self.formed.add((at, piece))
            with maker.clock("features", piece):
                self._meet(feature, at)
        return feature

    def feature(self, maker: Maker, piece: ParameterBlock, span: range, room: Tensor | None = None) -> Feature:
        """The features of some consecutive blocks; `room`: bytes that they may be formed in."""
        if piece in self.features:
            return self.features[piece][span.start : span.stop]
        blocks = [at for at in sorted(self.blocks, key=_start) if span.start <= at.start < span.stop]
        values = _space(maker, piece, len(span), room)
        if values is None:
            return self._joined(maker, piece, blocks, span)
        for at in blocks:
            place = values[at.start - span.start : at.stop - span.start]
            made = self._form(maker, piece, at, place)
            assert isinstance(made, DenseFeature)  # as all that are formed later
            if made.values.data_ptr() != place.data_ptr():
                with maker.clock("features", piece):
                    place.copy_(made.values)
        return DenseFeature(values)

    def _joined(self, maker: Maker, piece: ParameterBlock, blocks: Sequence[range], span: range) -> Feature:
        if len(blocks) == 1:
            return self._form(maker, piece, blocks[0])
        whole: Features = {}
        for at in blocks:
            made = self._form(maker, piece, at)
            with maker.clock("features", piece):
                place_feature(whole, piece, made, at.start - span.start, len(span))
        return whole[piece]

    def settle(self, maker: Maker) -> None:
        """After every piece was formed: raise what all blocks together say is wrong."""
        changed: list[GraphMismatch] = []
        for backward_pass in self.blocks.values():
            try:
                maker.settle(backward_pass)
            except GraphMismatch as change:
                changed.append(change)
        GraphMismatch.raise_all(changed)
        self.done = set(self.blocks)


def parts(maker: Maker, piece: ParameterBlock, samples: int, forming: int) -> list[ParameterBlock]:
    """A piece that is formed later, or as many of its rows at a time as fit into `forming` bytes for so many samples; all of
    them where that would be fewer than are worth it, or nothing can be told apart."""
    rows, least = piece.stop - piece.start, maker.deferral.least_rows(piece)
    fitting = rows * forming // max(1, _bytes(maker, piece) * samples)
    if fitting >= rows or fitting < least or least >= rows:
        return [piece]
    size = -(-rows // -(-rows // fitting))
    return [piece.part(at.start, at.stop) for at in ranges(piece.start, piece.stop, size)]


def _bytes(maker: Maker, piece: ParameterBlock) -> int:
    """Bytes of one sample's gradient."""
    return max(1, piece.feature_numbers(maker.width) * maker.precision.storage.itemsize)


def _start(at: range) -> int:
    return at.start


def _space(maker: Maker, piece: ParameterBlock, samples: int, room: Tensor | None) -> Tensor | None:
    """Where gradients are formed; None for fp16, which has scales besides."""
    if maker.precision.name == "fp16":
        return None
    return _placed(room, (samples, maker.width, piece.numbers), maker.precision.storage, maker.device)


def _placed(room: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Space for numbers: the first bytes of a room, or of their own where there is none or it is too small."""
    size = math.prod(shape) * dtype.itemsize
    if room is None or len(room) < size:
        return torch.empty(shape, dtype=dtype, device=device)
    return room[:size].view(dtype).view(shape)


@dataclass(frozen=True, eq=False)
class Layered:
    """One tile between two caches, or of one with itself: `block` samples were run at once.

    `forming` bytes for the gradients of both sides at a time, `workspace` bytes for products. `room`: the former, where they
    are kept from tile to tile; taken and given back for each layer, such large pieces of memory are broken up by what stays.
    """

    maker: Maker
    rows: FactorCache
    columns: FactorCache
    block: int
    forming: int
    workspace: int
    room: Tensor | None = None

    @property
    def own(self) -> bool:
        return self.rows is self.columns

    @property
    def size(self) -> int:
        """Rows of the matrix a sample."""
        return self.maker.width if self.maker.full else 1

    def total(self) -> Float[Tensor, "rows columns"]:
        """Products of all pairs in float64."""
        maker, size = self.maker, self.size
        shape = self.rows.n * size, self.columns.n * size
        total = torch.zeros(shape, dtype=torch.float64, device=maker.device)
        spots = self._spots()
        for piece in maker.pieces:
            late = piece in maker.deferral.pieces
            for part in parts(maker, piece, self._samples, self.forming) if late else [piece]:
                for left, right in self._spans(part, late):
                    self._multiply(part, left, right, total, spots)
        if self.own:
            mirror(total)
        self.rows.settle(maker)
        if not self.own:
            self.columns.settle(maker)
        for at, spot in spots:
            maker.settle_spot(spot, total[: self._height(at) * size, at.start * size : at.stop * size])
        return total

    def _height(self, at: range) -> int:
        return at.stop if self.own else self.rows.n

    def _spots(self) -> list[tuple[range, Spot]]:
        """The entries to check, chosen for each block of columns."""
        drawn = ((at, self.maker.spot(self._height(at), len(at))) for at in ranges(0, self.columns.n, self.block))
        return [(at, spot) for at, spot in drawn if spot is not None]

    @property
    def _samples(self) -> int:
        """Those of both sides."""
        return self.rows.n + self.columns.n * (not self.own)

    def _spans(self, piece: ParameterBlock, late: bool = True) -> list[tuple[range, list[range]]]:
        """Samples whose gradients are formed together: rows, and all columns that meet them; all, unless formed late."""
        each = _bytes(self.maker, piece)
        if not late or each * self._samples <= self.forming:
            return [(range(self.rows.n), [range(self.columns.n)])]
        fitting = max(2, self.forming // (each * self.block))  # blocks
        if self.own:
            rows = list(ranges(0, self.rows.n, fitting // 2 * self.block))
            return [(left, rows[k:]) for k, left in enumerate(rows)]
        # Columns are formed again for every span of rows, so these are long; columns few at a time, but enough for a product.
        few = max(1, min(fitting // 2, -(-NARROW // self.block)))
        spans = -(-self.rows.n // ((fitting - few) * self.block))
        long = -(-self.rows.n // (spans * self.block)) * self.block
        columns = list(ranges(0, self.columns.n, few * self.block))
        return [(left, columns) for left in ranges(0, self.rows.n, long)]

    def _multiply(
        self,
        piece: ParameterBlock,
        left: range,
        others: Sequence[range],
        total: Tensor,
        spots: list[tuple[range, Spot]],
    ) -> None:
        maker = self.maker
        rows = self.rows.feature(maker, piece, left, self.room)
        taken = -(-len(left) * _bytes(maker, piece) // ALIGNED) * ALIGNED
        rest = None if self.room is None else self.room[taken:]
        for right in others:
            same = self.own and left == right
            columns = rows if same else self.columns.feature(maker, piece, right, rest)
            if spots:
                with maker.clock("certificate"):
                    _meet(spots, left, right, rows, columns)
            size = self.size
            into = total[left.start * size : left.stop * size, right.start * size : right.stop * size]
            how: dict[str, Any] = {"precision": maker.precision, "workspace": self.workspace}
            with maker.clock("products", piece):
                flops = accumulate(into, rows, columns, full=maker.full, own=same, **how)
            maker.count("products", flops)


def _meet(spots: list[tuple[range, Spot]], left: range, right: range, rows: Feature, columns: Feature) -> None:
    """Add one piece to the entries that lie between these samples."""
    for at, spot in spots:
        row, column = spot.row, at.start + spot.column
        if row in left and column in right:
            spot.add_pair(rows[row - left.start :][:1], columns[column - right.start :][:1])

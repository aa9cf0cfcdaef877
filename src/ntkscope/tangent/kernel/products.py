"""Contraction: features of some samples stay while blocks of others pass by, and each block is multiplied with them.

`Maker` says what makes the features: an engine, or a forward pass alone.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Certificate
from ntkscope.tangent.blocks.clock import StageClock
from ntkscope.tangent.blocks.deferred import Deferral
from ntkscope.tangent.blocks.features import (
    DenseFeature,
    FactoredFeature,
    Feature,
    bundle,
    joined,
    self_products,
    small,
)
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.certify.spot_check import Spot
from ntkscope.tangent.kernel.coverage import Coverage
from ntkscope.tangent.kernel.plan import Footprint
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject


class Maker(ABC):
    """What makes features: a block of samples is captured once, then has a feature for each piece.

    A sample has `width` heads; with `full`, every pair of heads is a number of its own, else they are summed. `deferral` says
    which features can be formed later. Tiles of products are cut and shared among threads by what is said here.
    """

    subject: Subject
    precision: Precision
    timing: StageClock
    pieces: Sequence[Any]
    width = 1
    full = False
    deferral = Deferral(frozenset(), 0, 0, 0.0)

    @property
    def device(self) -> torch.device:
        return self.subject.device

    @property
    def dtype(self) -> torch.dtype:
        return self.subject.dtype

    @property
    @abstractmethod
    def footprint(self) -> Footprint:
        """What one sample takes."""

    @abstractmethod
    def capture(self, batch: Batch) -> Any:
        """Run one block."""

    @abstractmethod
    def feature(self, backward_pass: Any, piece: Any, out: Tensor | None = None) -> Feature:
        """`out`: where a gradient that is formed late may be written."""

    @abstractmethod
    def settle(self, backward_pass: Any) -> None:
        """After the last feature of a block: raise unless they are what they must be."""

    @abstractmethod
    def spot(self, height: int, width: int) -> Spot | None:
        """An entry of the next tile to check, or None."""

    @abstractmethod
    def settle_spot(self, spot: Spot, total: Tensor) -> None:
        """Raise unless that entry is what it must be."""

    @abstractmethod
    def check_finite(self, values: Tensor, x: Batch) -> None:
        """Raise where products are not finite."""

    @abstractmethod
    def twin(self) -> Maker:
        """The same for another thread; an error where there can be none."""

    @abstractmethod
    def coverage(self) -> Coverage: ...

    @abstractmethod
    def certificate(self) -> Certificate: ...

    def clock(self, stage: str, piece: Any = None) -> AbstractContextManager[None]:
        """Adds the time of its block to a stage and a parameter; a profiled run waits for the device on both ends."""
        return self.timing(stage, getattr(piece, "name", None))

    def count(self, stage: str, flops: float) -> None:
        """Adds floating-point operations to a stage."""
        self.timing.count(stage, flops)

    def groups(self, heads: int) -> Sequence[Maker]:
        """This, or one for every group of so many of its heads (0: all of them)."""
        return [self]

    def layers(self, count: int) -> Sequence[Maker]:
        """This, or one for each of about so many groups of its layers."""
        return [self]

    def group_footprint(self, heads: int) -> Footprint:
        """What a sample takes where so many heads are taken at once."""
        return self.footprint

    @property
    def sharing(self) -> int:
        """Bytes a sample that heads which share a backward pass take besides."""
        return 0

    def longest(self, samples: int) -> int:
        """The longest block that a call with so many samples should use; 0 for the planner's own limit."""
        return 0

    def compare_modes(self, x: Batch, room: float) -> None:
        """Time the execution modes on some of `x`, in `room` bytes, where that will pay."""
        return

    def begin(self, blocks: int, spare: float, threads: int) -> None:
        """So many blocks follow, run by so many threads; a mode may take `spare` bytes besides what the plan counts."""
        return


Features: TypeAlias = dict[Any, Feature]


@dataclass(frozen=True, eq=False)
class Column:
    """A block that meets the samples that stay: its feature for each piece, and what follows the last one."""

    feature: Callable[[Any], Feature]
    settle: Callable[[], None] = lambda: None


def ranges(start: int, stop: int, size: int) -> Iterator[range]:
    """`range(start, stop)` in pieces of at most `size`.

    >>> list(ranges(2, 7, 3))
    [range(2, 5), range(5, 7)]
    """
    for at in range(start, stop, size):
        yield range(at, min(stop, at + size))


def hold_block(maker: Maker, held: Features, x: Batch, at: range, side: Float[Tensor, "n c"] | None = None) -> None:
    """The features of one block of `x`, put in their places; self products are added to `side` (n, heads)."""
    backward_pass = maker.capture(x[at.start : at.stop])
    for piece in maker.pieces:
        feature = maker.feature(backward_pass, piece)
        with maker.clock("features", piece):
            if len(x) == len(at):
                held[piece] = feature
            else:
                place_feature(held, piece, feature, at.start, len(x))
            if side is not None:
                side[at.start : at.stop] += self_products(feature)
    maker.settle(backward_pass)


_PUTTING = threading.Lock()


def place_feature(held: Features, piece: Any, feature: Feature, start: int, n: int) -> None:
    """A block's features in their place among those of n samples; where blocks differ in positions, zeros fill up."""
    with _PUTTING:
        if piece not in held:
            held[piece] = feature.empty(n)
        kept = held[piece]
        if isinstance(kept, FactoredFeature) and isinstance(feature, FactoredFeature):
            longest = max(kept.positions, feature.positions)
            kept, feature = kept.stretched(longest), feature.stretched(longest)
        held[piece] = kept
        kept.put(start, feature)  # type: ignore[arg-type]


def cut(held: Features, at: range) -> Column:
    """A block of the samples that stay, as one that passes by."""
    return Column(partial(_cut, held, slice(at.start, at.stop)))


def _cut(held: Features, inner: slice, piece: Any) -> Feature:
    return held[piece][inner]


def passing(maker: Maker, x: Batch, at: range, side: Float[Tensor, "n c"] | None = None) -> Column:
    """A block of `x` that passes by; self products are added to `side` (n, heads)."""
    backward_pass = maker.capture(x[at.start : at.stop])

    def column(piece: Any) -> Feature:
        feature = maker.feature(backward_pass, piece)
        if side is not None:
            side[at.start : at.stop] += self_products(feature)
        return feature

    return Column(column, partial(maker.settle, backward_pass))


def mirror(square: Float[Tensor, "n n"], step: int = 512) -> None:
    """Make what lies below the diagonal the mirror image of what lies above."""
    for at in ranges(0, len(square), step):
        own = square[at.start : at.stop, at.start : at.stop]
        own.copy_(own.triu() + own.triu(1).T)
        square[at.stop :, at.start : at.stop] = square[at.start : at.stop, at.stop :].T


def feature_pairs(
    maker: Maker, held: Features, column: Column, height: int, spot: Spot | None, *, apart: bool
) -> Iterator[tuple[Any, Feature, Feature]]:
    """Each piece with its features of the first `height` held samples and of a block.

    Small ones come joined, without their pieces, unless they have to stay `apart`. `spot` is told of all.
    """
    waiting: list[tuple[DenseFeature, DenseFeature]] = []
    numbers = 0
    for piece in maker.pieces:
        left, right = held[piece][:height], column.feature(piece)
        if spot is not None:
            with maker.clock("certificate"):
                spot.add(left, right)
        if apart or isinstance(left, FactoredFeature) or isinstance(right, FactoredFeature):
            yield piece, left, right
        elif small(left) and small(right):
            waiting.append((left, right))
            numbers += left.values.numel() + right.values.numel()
            if numbers > bundle(left):
                yield _all_joined(waiting)
                numbers = 0
        else:
            yield piece, left, right
    if waiting:
        yield _all_joined(waiting)


def _all_joined(waiting: list[tuple[DenseFeature, DenseFeature]]) -> tuple[None, DenseFeature, DenseFeature]:
    left, right = (joined(side) for side in zip(*waiting))
    waiting.clear()
    return None, left, right


def write(
    values: Float[Tensor, "rows columns"],
    part: Float[Tensor, "height width"],
    row: int,
    column: int,
    symmetric: bool,
    *,
    add: bool = False,
) -> None:
    """Put `part` into `values` at (row, column); where `symmetric`, its mirror image too, its own square made exactly so."""
    height, width = part.shape
    target = values[row : row + height, column : column + width]
    if symmetric and row + height > column:  # it crosses the diagonal
        square = part[column - row :]
        square.copy_((square + square.T) / 2)
    if add:
        target += part
    else:
        target.copy_(part)
    if symmetric:
        above = column - row if row + height > column else height
        mirrored = values[column : column + width, row : row + above]
        if add:
            mirrored += part[:above].T
        else:
            mirrored.copy_(part[:above].T)


def flat(side: Float[Tensor, "n c"], full: bool) -> Float[Tensor, " rows"]:
    """Self products (n, heads) as the diagonal of the kernel: every head's own, or their sum."""
    return side.flatten() if full else side.sum(1)

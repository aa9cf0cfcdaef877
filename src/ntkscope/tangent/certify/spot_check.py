"""Spot checks of products: one entry of a tile, computed again from formed gradients in float64.

The audit compares features with autograd; this compares what is made of them. Each tile of a shape that was not seen before
is checked, and one in eight of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, generator
from ntkscope.tangent.blocks.features import DenseFeature, FactoredFeature, Feature

EVERY = 8
HELD = 2**22  # numbers of formed gradients at a time
FEW = 8  # neighbouring heads that are looked at where every pair of heads is a number of its own


@dataclass
class Spot:
    """One entry of a tile: its samples, and what the pieces seen so far add up to."""

    row: int
    column: int
    full: bool  # whether every pair of heads is a number of its own
    where: float = 0.0  # which heads are looked at then: from the first ones, 0, to the last ones, 1
    heads: int = 1  # how many a sample has
    dtype: torch.dtype = torch.float64  # of the features
    products: Tensor | None = None  # of the two samples with each other and themselves: (2, 2), or (2, 2, few, few)

    def add(self, left: Feature, right: Feature) -> None:
        """The products of one more piece, some heads at a time: copies of all of them may not fit beside the features."""
        self.add_pair(left[self.row : self.row + 1], right[self.column : self.column + 1])

    def add_pair(self, one: Feature, other: Feature) -> None:
        """The same for the features of the two samples alone."""
        self.heads, self.dtype = one.stored.shape[-2], one.stored.dtype
        if self.full:
            parts = [self._chosen]
        else:
            each = max(1, HELD // max(1, _numbers(one, other)))
            parts = [slice(at, at + each) for at in range(0, self.heads, each)]
        for part in parts:
            found = products(_joined(one.some(part), other.some(part)), self.full)
            self.products = found if self.products is None else self.products + found

    @property
    def _chosen(self) -> slice:
        first = round(self.where * max(0, self.heads - FEW))
        return slice(first, min(self.heads, first + FEW))

    def discrepancy(self, total: Tensor) -> float:
        """How far `total` is off at this entry, beside the lengths of the two gradients; 0 where it is not finite."""
        if self.products is None:
            return 0.0
        seen, every = (self._chosen, self.heads) if self.full else (slice(0, 1), 1)
        rows, columns = (slice(at * every + seen.start, at * every + seen.stop) for at in (self.row, self.column))
        off = float((total[rows, columns].double() - self.products[0, 1]).abs().max())
        relative = off / max(self.length, 1e-300)
        return relative if math.isfinite(relative) else 0.0  # others say what is wrong with infinite numbers

    @property
    def length(self) -> float:
        """The product of the lengths of the two gradients."""
        assert self.products is not None
        lengths = [self.products[k, k].trace() if self.full else self.products[k, k] for k in (0, 1)]
        return float(lengths[0].sqrt() * lengths[1].sqrt())


@dataclass
class Spots:
    """Chooses the entries to check."""

    wanted: bool
    seed: int = 0
    tiles: int = 0
    shapes: set[tuple[int, int]] = field(default_factory=set)

    def choose(self, height: int, width: int, full: bool) -> Spot | None:
        number = self.tiles
        self.tiles += 1
        known = (height, width) in self.shapes
        if not self.wanted or not height or not width or (known and number % EVERY):
            return None
        self.shapes.add((height, width))
        drawn = generator(self.seed, "spot", number)
        row, column = (int(torch.randint(size, (1,), generator=drawn)) for size in (height, width))
        return Spot(row, column, full, float(torch.rand(1, generator=drawn)))


def settle(spot: Spot, total: Float[Tensor, "rows columns"], tolerance: float) -> float:
    """The discrepancy at the entry; an error where it is beyond the tolerance."""
    found = spot.discrepancy(total)
    if found <= tolerance:
        return found
    info = torch.finfo(spot.dtype)
    if spot.length < info.tiny / info.eps:
        raise NumericalError(
            f"gradients or features of some samples are so small that products of about {spot.length:.0e} lose their digits in"
            f" {str(spot.dtype).removeprefix('torch.')}; use dtype=torch.float64, or multiply the model's outputs by a constant"
        )
    raise NumericalError(
        f"an entry of the kernel differs from the same product of features, computed in float64, by {found:.1e} of their"
        f" lengths, more than {tolerance:.0e}; this is an error in ntkscope or in PyTorch's BLAS: please report it with"
        " the model, and use dtype=torch.float64 or another device meanwhile"
    )


def products(both: Feature, full: bool) -> Float[Tensor, "2 2 *heads"]:
    """All products of two samples, float64: (2, 2), summed over heads, or (2, 2, heads, heads).

    Sums are taken element by element where they can be: a matrix product of two rows by two, millions long, is the slowest
    there is.
    """
    if isinstance(both, DenseFeature):
        values = _of_gradients(both.values.double(), full)
    elif both.a.is_floating_point() and both.positions > both.a.shape[3]:  # forming the gradients is the shorter way
        formed = torch.einsum("gisco,gisk->icgok", both.b.double(), both.a.double())
        values = _of_gradients(formed.flatten(2), full)
    else:
        a, b = both.a, both.b.double()  # (g, i, s, c, o)
        if a.is_floating_point():
            wide = a.double()
            near = torch.einsum("gisk,gjtk->gijst", wide, wide)
        else:
            near = (a[:, :, None, :, None] == a[:, None, :, None, :]).double()
        met = torch.einsum("gijst,gjtdo->gijsdo", near, b)
        if full:
            values = torch.einsum("gisco,gijsdo->ijcd", b, met)
        else:
            values = (b[:, :, None] * met).sum((0, 3, 4, 5))
    if both.scale is not None:
        scale = torch.outer(both.scale, both.scale).double()
        values = values * scale.reshape(2, 2, *[1] * (values.dim() - 2))
    return values


def _of_gradients(g: Float[Tensor, "2 c p"], full: bool) -> Float[Tensor, "2 2 *heads"]:
    """Products of two samples' gradients (2, heads, numbers)."""
    if full:
        return torch.einsum("icp,jdp->ijcd", g, g)
    own, cross = g.square().sum((1, 2)), (g[0] * g[1]).sum()
    return torch.stack([own[0], cross, cross, own[1]]).view(2, 2)


def _joined(left: Feature, right: Feature) -> Feature:
    """Two samples in one feature."""
    scale = None
    if left.scale is not None and right.scale is not None:
        scale = torch.cat([left.scale, right.scale])
    if isinstance(left, DenseFeature):
        assert isinstance(right, DenseFeature)
        return DenseFeature(torch.cat([left.values, right.values]), scale)
    assert isinstance(right, FactoredFeature)
    longest = max(left.positions, right.positions)
    left, right = left.stretched(longest), right.stretched(longest)
    return FactoredFeature(torch.cat([left.a, right.a], 1), torch.cat([left.b, right.b], 1), scale)


def _numbers(one: Feature, other: Feature) -> int:
    """Numbers held for one head of two samples."""
    if isinstance(one, DenseFeature):
        return 2 * one.values.shape[2]
    assert isinstance(other, FactoredFeature)
    g, _, _, _, o = one.b.shape
    s = max(one.positions, other.positions)
    inside = one.a.shape[3] if one.a.is_floating_point() else s
    return 4 * g * s * (s + o) if s <= inside else 2 * g * o * inside

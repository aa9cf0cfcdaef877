"""Spot checks of products: one entry of a tile, computed again from formed gradients in float64.

The audit compares features with autograd; this compares what is made of them. Each tile of a shape that was not seen before
is checked, and one in eight of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkscope.core import NumericalError, generator
from ntkscope.tangent.features import Feature, Formed, Near

EVERY = 8
HELD = 2**22  # numbers of formed gradients at a time


@dataclass
class Spot:
    """One entry of a tile: its samples, and what the pieces seen so far add up to."""

    row: int
    column: int
    full: bool  # whether every pair of heads is a number of its own
    expected: Tensor | float = 0.0
    lengths: Tensor | float = 0.0  # (2,), squared

    def add(self, left: Feature, right: Feature) -> None:
        one, other = left[self.row : self.row + 1], right[self.column : self.column + 1]
        if self.full:
            parts = [(one, other)]
        else:  # a few heads at a time: only the products of each with itself are summed
            each = max(1, HELD // max(1, _numbers(one)))
            heads = _heads(one)
            parts = [(_some(one, at, at + each), _some(other, at, at + each)) for at in range(0, heads, each)]
        for a, b in parts:
            product = pair(a, b)
            self.expected = self.expected + (product if self.full else product.trace())
            self.lengths = self.lengths + torch.stack([pair(a, a).trace(), pair(b, b).trace()])

    def discrepancy(self, total: Tensor) -> float:
        """How far `total` is off at this entry, beside the lengths of the two gradients; 0 where it is not finite."""
        if not isinstance(self.expected, Tensor) or not isinstance(self.lengths, Tensor):
            return 0.0
        heads = len(self.expected) if self.full else 1
        rows, columns = (slice(at * heads, (at + 1) * heads) for at in (self.row, self.column))
        off = (total[rows, columns].double() - self.expected).abs().max()
        relative = float(off / self.lengths.prod().sqrt().clamp_min(1e-300))
        return relative if math.isfinite(relative) else 0.0  # others say what is wrong with infinite numbers


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
        return Spot(row, column, full)


def settle(spot: Spot, total: Tensor, tolerance: float) -> float:
    """The discrepancy at the entry; an error where it is beyond the tolerance."""
    found = spot.discrepancy(total)
    if found <= tolerance:
        return found
    raise NumericalError(
        f"an entry of the kernel differs from the same product of features, computed in float64, by {found:.1e} of their"
        f" lengths, more than {tolerance:.0e}; this is an error in ntkscope or in PyTorch's BLAS: please report it with"
        " the model, and use dtype=torch.float64 or another device meanwhile"
    )


def pair(left: Feature, right: Feature) -> Tensor:
    """Products of the heads of one sample with those of another, (heads, heads), float64, from formed gradients."""
    if isinstance(left, Near) and isinstance(right, Near) and not left.a.is_floating_point():
        same = (left.a[0, 0][:, None] == right.a[0, 0][None, :]).double()  # (s, t)
        values = torch.einsum("sco,st,tdo->cd", left.b[0, 0].double(), same, right.b[0, 0].double())
    else:
        values = _gradient(left) @ _gradient(right).T
    for side in (left, right):
        if side.scale is not None:
            values = values * side.scale.double()
    return values


def _gradient(feature: Feature) -> Tensor:
    """(heads, numbers)"""
    if isinstance(feature, Formed):
        return feature.values[0].double()
    return torch.einsum("gsco,gsi->cgoi", feature.b[:, 0].double(), feature.a[:, 0].double()).flatten(1)


def _heads(feature: Feature) -> int:
    return feature.values.shape[1] if isinstance(feature, Formed) else feature.b.shape[3]


def _numbers(feature: Feature) -> int:
    """Of one head's gradient."""
    if isinstance(feature, Formed):
        return feature.values.shape[2]
    g, _, s, _, o = feature.b.shape
    return g * o * feature.a.shape[3] if feature.a.is_floating_point() else s * (s + o)


def _some(feature: Feature, start: int, stop: int) -> Feature:
    """Some of the heads."""
    if isinstance(feature, Formed):
        return Formed(feature.values[:, start:stop], feature.scale)
    return Near(feature.a, feature.b[:, :, :, start:stop], feature.scale)

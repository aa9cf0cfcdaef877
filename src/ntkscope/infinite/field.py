"""`Field`: the covariances of one layer's units, between the inputs of many pairs and between positions of their images.

Units of an infinitely wide layer are independent, so a layer is known by the covariance of one unit with itself at two
places: (input x, position p) and (input x′, position p′). Position axes come first and pair axes last, which makes every
shift of an image a copy of long runs of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

Values: TypeAlias = Any
"""A tensor, or a NumPy array of mpmath numbers where a spectrum needs more digits than a double has."""

Shift: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Field:
    """Covariances before or behind a layer.

    `nngp`, `ntk`: shaped (*positions, *pairs); `ntk` is None while it is zero. The positions are none for vectors. For
    images, a dimension that is `double` has two axes, (h, h′); one that is not has one, on which h′ = h, or h′ = h + shift
    for each of `shifts`, which then have an axis of their own behind the positions; positions are those where h and h′ are
    both inside. `wrap`: images are rings, so h + shift is always inside.
    """

    nngp: Values
    ntk: Values | None = None
    spatial: tuple[int, ...] = ()
    double: tuple[bool, ...] = ()
    shifts: tuple[Shift, ...] | None = None
    wrap: bool = False

    @property
    def full(self) -> bool:
        """All pairs of positions are here."""
        return bool(self.spatial) and all(self.double)

    def axes(self, dimension: int) -> tuple[int, ...]:
        """The axes of one dimension of the image."""
        first = sum(2 if double else 1 for double in self.double[:dimension])
        return (first, first + 1) if self.double[dimension] else (first,)

    @property
    def position_axes(self) -> int:
        """How many leading axes are positions."""
        return len(self.spatial) + sum(self.double)

    def mapped(self, function: Any, **changes: Any) -> Field:
        """The field with `function` applied to both covariances."""
        ntk = None if self.ntk is None else function(self.ntk)
        return replace(self, nngp=function(self.nngp), ntk=ntk, **changes)

    def same(self) -> Field:
        """Only the covariances of equal positions: (h, h′, w, w′, …) to (h, w, …); nothing for one that has no others."""
        if not self.full:
            return self
        dimensions = len(self.spatial)
        return self.mapped(lambda values: equal_positions(values, dimensions), double=(False,) * dimensions)


def equal_positions(values: Tensor, dimensions: int) -> Tensor:
    """(h, h′, w, w′, …) to (h, w, …) with h′ = h, w′ = w; a view."""
    for axis in range(dimensions):
        values = values.diagonal(dim1=axis, dim2=axis + 1).movedim(-1, axis)
    return values


def paired(q: Tensor, double: Sequence[bool], side: int) -> Tensor:
    """(h, w, …) to (h, 1, w, 1, …) for the left side, to (1, h, 1, w, …) for the right one, where a dimension is double."""
    axis = 0
    for doubled in double:
        q = q.unsqueeze(axis + 1 - side) if doubled else q
        axis += 1 + doubled
    return q


def shifted(q: Tensor, shifts: Sequence[Shift], side: int, wrap: bool) -> Tensor:
    """(h, w, n) at p (side 0) or p + shift (side 1) for each shift, where both are inside: (h − |Δ|, w − |Δ|, shifts, n)."""
    parts = []
    for shift in shifts:
        part = q
        for axis, delta in enumerate(shift):
            if wrap:
                part = part.roll(-delta * side, axis)
            else:
                start = max(0, delta if side else -delta)
                part = part.narrow(axis, start, q.shape[axis] - abs(delta))
        parts.append(part)
    return torch.stack(parts, dim=len(shifts[0]))


@dataclass(frozen=True)
class Block:
    """Some inputs, positions first, and their variances wherever the network needs them."""

    x: Tensor
    """(*spatial, n, channels)."""
    variances: dict[str, Tensor]
    diagonal: list[Tensor]
    """K(x, x) of NNGP and NTK; empty where it would cost as much as pairs do."""

    def __len__(self) -> int:
        return self.x.shape[-2]

    def __getitem__(self, chosen: slice) -> Block:
        variances = {path: q[..., chosen] for path, q in self.variances.items()}
        return Block(self.x[..., chosen, :], variances, [])

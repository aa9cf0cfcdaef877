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

    `nngp`, `ntk`: shaped (*positions, *pairs); `ntk` is None while it is zero. The positions are

    - none for vectors;
    - `spatial`, one axis a dimension, when `full` is false: p′ = p, or p′ = p + shift for each of `shifts`, which then
      have an axis of their own behind the positions, and positions are those where both p and p′ are inside;
    - two axes a dimension, (h, h′, w, w′), when `full` is true.

    `wrap`: images are rings, so p + shift is always inside.
    """

    nngp: Values
    ntk: Values | None = None
    spatial: tuple[int, ...] = ()
    full: bool = False
    shifts: tuple[Shift, ...] | None = None
    wrap: bool = False

    @property
    def position_axes(self) -> int:
        """How many leading axes are positions."""
        return len(self.spatial) * (2 if self.full else 1)

    def mapped(self, function: Any, **changes: Any) -> Field:
        """The field with `function` applied to both covariances."""
        ntk = None if self.ntk is None else function(self.ntk)
        return replace(self, nngp=function(self.nngp), ntk=ntk, **changes)

    def same(self) -> Field:
        """Only the covariances of equal positions: (h, h′, w, w′, …) to (h, w, …)."""
        return self.mapped(lambda values: equal_positions(values, len(self.spatial)), full=False) if self.full else self

    def reach(self, axis: int) -> int:
        """The length of a single position axis: the whole image's, less what the shift cuts off."""
        cut = 0 if self.shifts is None or self.wrap else abs(self.shifts[0][axis])
        return self.spatial[axis] - cut


def equal_positions(values: Tensor, dimensions: int) -> Tensor:
    """(h, h′, w, w′, …) to (h, w, …) with h′ = h, w′ = w; a view."""
    for axis in range(dimensions):
        values = values.diagonal(dim1=axis, dim2=axis + 1).movedim(-1, axis)
    return values


def paired(q: Tensor, dimensions: int, side: int) -> Tensor:
    """(h, w, …) to (h, 1, w, 1, …) for the left side, to (1, h, 1, w, …) for the right one."""
    for axis in range(dimensions):
        q = q.unsqueeze(2 * axis + 1 - side)
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

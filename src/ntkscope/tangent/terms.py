"""Terms: what one function call adds to the gradient of one parameter, as a function of the cotangent of its output.

Shapes: n samples, c heads (outputs asked for), q what a layout folded beside the samples, s positions, g groups, i the
side of the gradient that no head changes (activations), o the side that carries the cotangent. A canonical activation
is (n, g, s, i), a canonical cotangent (n, c, g, o, s), so the gradient is their matrix product, group by group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """Which part of which parameter a call read: all of it, or the rows [start, stop) of a slice; perhaps transposed."""

    name: str
    start: int
    stop: int
    transposed: bool = False

    @property
    def piece(self) -> tuple[str, int, int]:
        return self.name, self.start, self.stop


@dataclass(frozen=True, eq=False)
class Outer:
    """`G = Σ_s b_s ⊗ a_s`: the weight of an affine map. `transposed`: the parameter holds (i, o) instead of (o, i)."""

    slot: Slot
    x: Tensor  # the raw input of the call
    lead_x: int  # its leading, batch-like axes
    lead_y: int  # those of the output
    activations: Callable[[Tensor], Tensor]  # (n, q, …) -> (n, g, s, i)
    cotangents: Callable[[Tensor], Tensor]  # (n, q, …) -> (n, g, o, s)
    transposed: bool = False
    reorder: Callable[[Tensor], Tensor] | None = None  # the axis i as computed -> as the parameter has it


@dataclass(frozen=True, eq=False)
class Vector:
    """`G = Σ_s b_s x̂_s`, elementwise: a bias (x̂ = 1), a norm's scale. Formed at once, it is small."""

    slot: Slot
    x: Tensor | None
    lead_x: int
    lead_y: int
    prepare: Callable[[Tensor], Tensor] | None  # the raw input (n, q, …) -> x̂
    reduce: Callable[[Tensor], Tensor]  # b x̂ (n, q, …) -> (n, p), summed over positions


@dataclass(frozen=True, eq=False)
class Lookup:
    """`G = Σ_s e_{id(s)} ⊗ b_s`: the rows of a table that the indices `x` picked."""

    slot: Slot
    x: Tensor
    lead_x: int
    lead_y: int
    rows: int
    padding: int | None


Term: TypeAlias = Outer | Vector | Lookup


def outer_gradient(a: Tensor, b: Tensor, transposed: bool, reorder: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """(n, g, s, i) and (n, c, g, o, s) to the gradient, (n, c, g·o·i), in the parameter's own order given `reorder`.

    One matrix product per sample and group, operands laid out along its inner axis (the other way round costs several
    times more on some BLAS): 2·c·g·i·o·s flops.
    """
    n, c, g, o, s = b.shape
    i = a.shape[3]
    if g == 1:
        formed = torch.bmm(b.reshape(n, c * o, s), a.reshape(n, s, i)).view(n, c, 1, o, i)
    else:
        blocks = b.transpose(1, 2).reshape(n * g, c * o, s)
        formed = torch.bmm(blocks, a.reshape(n * g, s, i)).view(n, g, c, o, i).transpose(1, 2)
    if reorder is not None:
        formed = reorder(formed)
    if transposed:
        formed = formed.transpose(3, 4)
    return formed.reshape(n, c, g * o * i)


def lookup_gradient(ids: Tensor, b: Tensor, rows: int) -> Tensor:
    """ids (n, s) and cotangents (n, c, o, s) to the gradient of the table, (n, c, rows·o)."""
    n, c, o, s = b.shape
    table = b.new_zeros(n * c * rows, o)
    where = torch.arange(n * c, device=b.device).reshape(n, c, 1) * rows + ids.reshape(n, 1, s)
    table.index_add_(0, where.reshape(-1), b.transpose(2, 3).reshape(n * c * s, o))
    return table.reshape(n, c, rows * o)

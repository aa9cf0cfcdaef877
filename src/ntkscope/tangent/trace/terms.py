"""Terms: what one function call adds to the gradient of one parameter, as a function of the cotangent of its output.

Shapes: n samples, c heads (outputs asked for), q what a layout folded beside the samples, s positions, g groups, i the
side of the gradient that no head changes (activations), o the side that carries the cotangent. A canonical activation
is (n, g, s, i), a canonical cotangent (n, c, g, o, s), so the gradient is their matrix product, group by group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias, final

import torch
from jaxtyping import Inexact
from torch import Tensor

Multiply: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # (n, r, k), (n, k, q) and where it is written


def plain_products(left: Tensor, right: Tensor, out: Tensor | None) -> Tensor:
    return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)


@dataclass(frozen=True, eq=False)
class Forming:
    """How a gradient is formed: in the parameter's own order, or in any if not `ordered`; written to `out` where that is
    possible, contiguous and of its type; its products of many matrices made by `multiply`."""

    ordered: bool = True
    out: Tensor | None = None
    multiply: Multiply = plain_products


PLAINLY = Forming()


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
class Order:
    """In which order a term's formed gradient (g, o, i) stands, and how that becomes the parameter's own."""

    transposed: bool  # the parameter holds (i, o) instead of (o, i)
    reorder: Callable[[Tensor], Tensor] | None  # the axis i as computed -> as the parameter has it

    def inner(self, along: Tensor) -> Tensor:
        """A vector along the parameter's inner axis, as it stands along the computed one."""
        if self.reorder is None:
            return along
        moved = torch.empty_like(along)
        moved[self.reorder(torch.arange(len(along), device=along.device))] = along
        return moved

    def through(self, gradient: Tensor, groups: int, inside: int, along: Tensor) -> Tensor:
        """A parameter's gradient applied to a vector along its inner side: (g, o)."""
        if self.transposed:
            return torch.einsum("gio,i->go", gradient.reshape(groups, inside, -1), along)
        return gradient.reshape(groups, -1, inside) @ along

    def arranged(self, formed: Tensor, groups: int, inside: int) -> Tensor:
        """A formed gradient as the parameter has its numbers."""
        if self.reorder is None or formed.dim() == 2:
            return formed
        formed = formed.view((groups, inside, -1) if self.transposed else (groups, -1, inside))
        formed = self.reorder(formed.transpose(1, 2) if self.transposed else formed)
        return formed.transpose(1, 2) if self.transposed else formed


@dataclass(frozen=True, eq=False)
class Term(ABC):
    """What one call adds to the gradient of one slot. `x` is the raw input as `Layout.read` gives it, (n, q, …)."""

    slot: Slot
    x: Tensor | None  # the raw input of the call
    lead_x: int  # its leading, batch-like axes
    lead_y: int  # those of the output

    factors: ClassVar[bool] = False  # whether the two sides of an outer product can be kept apart
    only_multiplied: ClassVar[bool] = False  # whether cotangents are used in products alone, and may be kept short

    @property
    def order(self) -> Order | None:
        """The order of a formed gradient where it is the term's own."""
        return None

    @property
    def flipped(self) -> bool:
        """Whether the side that no head changes is the parameter's first axis."""
        return False

    @property
    def kind(self) -> tuple[type[Term], bool]:
        """Terms of one kind add up side by side."""
        return type(self), self.flipped

    @abstractmethod
    def gradient(self, x: Tensor | None, arrived: Tensor, how: Forming = PLAINLY) -> Tensor:
        """(n, heads, numbers) for cotangents (n, heads, q, …)."""

    @abstractmethod
    def extent(self, x: Tensor | None, repeats: int) -> tuple[int, int, int]:
        """(positions, groups, inside); a term without an inside is summed over `repeats` positions."""

    def outside(self, numbers: int, rows: int, groups: int, inside: int) -> int:
        """The side that carries the cotangent, of `numbers` in `rows` rows of the parameter."""
        return numbers // (groups * inside)

    def sides(self, x: Tensor | None, arrived: Tensor) -> tuple[Tensor, Tensor]:
        """Activations (n, g, s, i), or indices (n, s), and cotangents (n, g, s, heads, o); only where `factors`."""
        raise NotImplementedError(f"{type(self).__name__} has no two sides")

    def places(self, a: Tensor, o: int, others: Tensor) -> tuple[Tensor, Tensor]:
        """Where in the parameter the entries of both sides are: along its first axis, and among `others`; where `factors`."""
        raise NotImplementedError(f"{type(self).__name__} has no two sides")


@final
@dataclass(frozen=True, eq=False)
class Outer(Term):
    """`G = Σ_s b_s ⊗ a_s`: the weight of an affine map. `transposed`: the parameter holds (i, o) instead of (o, i)."""

    x: Tensor
    activations: Callable[[Tensor], Tensor]  # (n, q, …) -> (n, g, s, i)
    cotangents: Callable[[Tensor], Tensor]  # (n, q, …) -> (n, g, o, s)
    transposed: bool = False
    reorder: Callable[[Tensor], Tensor] | None = None  # the axis i as computed -> as the parameter has it
    leading: bool = False  # whether `cotangents` takes further axes before its own

    factors = True
    only_multiplied = True

    @property
    def order(self) -> Order:
        return Order(self.transposed, self.reorder)

    @property
    def flipped(self) -> bool:
        return self.transposed

    def gradient(self, x: Tensor | None, arrived: Tensor, how: Forming = PLAINLY) -> Tensor:
        assert x is not None
        a = self.activations(x.to(arrived.dtype))
        return outer_gradient(a, self._canonical(arrived), self.transposed, self.reorder, how)

    def extent(self, x: Tensor | None, repeats: int) -> tuple[int, int, int]:
        assert x is not None
        _, groups, positions, inside = self.activations(x).shape
        return positions, groups, inside

    def sides(self, x: Tensor | None, arrived: Tensor) -> tuple[Tensor, Tensor]:
        assert x is not None
        return self.activations(x.to(arrived.dtype)), self._canonical(arrived).permute(0, 2, 4, 1, 3)

    def places(self, a: Tensor, o: int, others: Tensor) -> tuple[Tensor, Tensor]:
        inside = torch.arange(a.shape[1], device=others.device)
        if self.transposed:
            return self.slot.start + inside, others[:o]
        own = inside if self.reorder is None else self.reorder(inside)
        places = torch.empty_like(inside)
        places[own] = others
        return places, self.slot.start + torch.arange(o, device=others.device)

    def divides(self, rows: int, inside: int, outside: int) -> bool:
        """Whether the rows of the parameter are one side of the product, so that some can be formed without the others."""
        return (rows == inside and self.reorder is None) if self.transposed else rows == outside

    def part(self, start: int, stop: int) -> Outer:
        """The same for rows [start, stop) of the parameter alone, where it divides."""
        slot, own = replace(self.slot, start=start, stop=stop), slice(start - self.slot.start, stop - self.slot.start)
        if self.transposed:
            return replace(self, slot=slot, activations=lambda x: self.activations(x)[..., own])
        return replace(self, slot=slot, cotangents=lambda value: self.cotangents(value)[..., own, :])

    def _canonical(self, arrived: Tensor) -> Tensor:
        """(n, heads, q, …) to the canonical (n, heads, g, o, s)."""
        if self.leading:
            return self.cotangents(arrived)
        n, heads = arrived.shape[:2]
        return self.cotangents(arrived.flatten(0, 1)).unflatten(0, (n, heads))


@final
@dataclass(frozen=True, eq=False)
class Vector(Term):
    """`G = Σ_s b_s x̂_s`, elementwise: a bias (x̂ = 1), a norm's scale. Formed at once, it is small."""

    prepare: Callable[[Tensor], Tensor] | None  # the raw input (n, q, …) -> x̂
    reduce: Callable[[Tensor], Tensor]  # b x̂ (n, q, …) -> (n, p), summed over positions

    def gradient(self, x: Tensor | None, arrived: Tensor, how: Forming = PLAINLY) -> Tensor:
        return self.reduced(self.prepared(x), arrived)

    def prepared(self, x: Tensor | None) -> Tensor | None:
        """What cotangents are multiplied with, the same for every head."""
        return None if x is None or self.prepare is None else self.prepare(x)

    def reduced(self, prepared: Tensor | None, arrived: Tensor) -> Tensor:
        """The gradient, given what cotangents are multiplied with; heads that lie outermost in memory are not copied."""
        if arrived.stride(1) > arrived.stride(0):
            whole = arrived.transpose(0, 1)
            whole = whole if prepared is None else whole * prepared
            return self.reduce(whole.flatten(0, 1)).unflatten(0, whole.shape[:2]).transpose(0, 1)
        whole = arrived if prepared is None else arrived * prepared.unsqueeze(1)
        return self.reduce(whole.flatten(0, 1)).unflatten(0, whole.shape[:2])

    def extent(self, x: Tensor | None, repeats: int) -> tuple[int, int, int]:
        return max(1, repeats), 1, 1


@final
@dataclass(frozen=True, eq=False)
class Lookup(Term):
    """`G = Σ_s e_{id(s)} ⊗ b_s`: the rows of a table that the indices `x` picked."""

    x: Tensor
    rows: int
    padding: int | None

    factors = True

    @property
    def flipped(self) -> bool:
        return True

    def gradient(self, x: Tensor | None, arrived: Tensor, how: Forming = PLAINLY) -> Tensor:
        ids, b = self.sides(x, arrived)
        return lookup_gradient(ids, b[:, 0].permute(0, 2, 3, 1), self.rows)

    def extent(self, x: Tensor | None, repeats: int) -> tuple[int, int, int]:
        assert x is not None
        return x.shape[1], 1, 1

    def outside(self, numbers: int, rows: int, groups: int, inside: int) -> int:
        return numbers // rows

    def sides(self, x: Tensor | None, arrived: Tensor) -> tuple[Tensor, Tensor]:
        assert x is not None
        b = arrived.transpose(1, 2)  # (n, s, heads, o)
        if self.padding is not None:
            b = b * (x != self.padding)[:, :, None, None]
        return x, b.unsqueeze(1)

    def places(self, a: Tensor, o: int, others: Tensor) -> tuple[Tensor, Tensor]:
        return self.slot.start + a, others[:o]


def outer_gradient(
    a: Tensor,
    b: Tensor,
    transposed: bool,
    reorder: Callable[[Tensor], Tensor] | None = None,
    how: Forming = PLAINLY,
) -> Inexact[Tensor, "n c numbers"]:
    """(n, g, s, i) and (n, c, g, o, s) to the gradient, (n, c, g·o·i), in the parameter's own order given `reorder`.

    One matrix product per sample and group, operands laid out along its inner axis (the other way round costs several
    times more on some BLAS): 2·c·g·i·o·s flops.
    """
    n, c, g, o, s = b.shape
    i, out = a.shape[3], how.out
    reorder = reorder if how.ordered else None
    if out is not None and g == 1 and reorder is None and not transposed and out.dtype == b.dtype:
        how.multiply(b.reshape(n, c * o, s), a.reshape(n, s, i), out.view(n, c * o, i))
        return out
    if g == 1:
        formed = how.multiply(b.reshape(n, c * o, s), a.reshape(n, s, i), None).view(n, c, 1, o, i)
    else:
        blocks = b.transpose(1, 2).reshape(n * g, c * o, s)
        formed = how.multiply(blocks, a.reshape(n * g, s, i), None).view(n, g, c, o, i).transpose(1, 2)
    if reorder is not None:
        formed = reorder(formed)
    if transposed:
        formed = formed.transpose(3, 4)
    return formed.reshape(n, c, g * o * i)


def lookup_gradient(ids: Tensor, b: Tensor, rows: int) -> Inexact[Tensor, "n c numbers"]:
    """ids (n, s) and cotangents (n, c, o, s) to the gradient of the table, (n, c, rows·o)."""
    n, c, o, s = b.shape
    table = b.new_zeros(n * c * rows, o)
    where = torch.arange(n * c, device=b.device).reshape(n, c, 1) * rows + ids.reshape(n, 1, s)
    table.index_add_(0, where.reshape(-1), b.transpose(2, 3).reshape(n * c * s, o))
    return table.reshape(n, c, rows * o)

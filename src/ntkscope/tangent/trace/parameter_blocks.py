"""Pieces: the parameters, or row slices of them, that the engine contracts one at a time, and the method each takes.

The cost of one pair of samples, in multiply-adds (c heads, s positions, g groups, i and o the two sides):

| method | trace over heads | all pairs of heads |
| --- | --- | --- |
| kronecker (s = 1) | g (i + c o) | g (i + c² o) |
| positions | g s² (i + c o + w) | g s² (i + c² (o + w)) |
| direct | c g i o (1 + 2 s / block) | c² g i o + forming |

`w` is what an elementwise pass over the s² products costs beside a matrix product; forming a gradient is shared by all
the partners a sample meets in its block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from ntkscope.tangent.model.layout import Layout
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probe import Findings
from ntkscope.tangent.trace.tape import Call
from ntkscope.tangent.trace.terms import Term

ELEMENTWISE = 24  # multiply-adds a core does while it streams one element of a product through memory
PARTNERS = 256  # partners a formed gradient meets before it is formed again; an estimate for the cost model


@dataclass(frozen=True)
class ParameterBlock:
    """One parameter, or rows [start, stop) of it: the terms that make its gradient and the method that computes it."""

    name: str
    start: int
    stop: int
    numbers: int
    members: tuple[tuple[int, int], ...]  # (call, term); empty for the func method
    method: str
    positions: int = 1
    groups: int = 1
    inside: int = 0
    outside: int = 0

    def feature_numbers(self, heads: int) -> int:
        """How many numbers a sample's feature holds."""
        if self.method in ("kronecker", "positions"):
            return self.groups * self.positions * (self.inside + heads * self.outside)
        return heads * self.numbers

    def forming_numbers(self, heads: int) -> int:
        """How many more a sample needs while its feature is made: patches, rearranged cotangents."""
        return self.groups * self.positions * (2 * self.inside + 2 * heads * self.outside)

    def part(self, start: int, stop: int) -> ParameterBlock:
        """Rows [start, stop) of it alone, where they are one side of an outer product."""
        some, rows = stop - start, self.stop - self.start
        inside, outside = (self.inside, some) if self.outside == rows else (some, self.outside)
        numbers = self.numbers // rows * some
        return replace(self, start=start, stop=stop, numbers=numbers, inside=inside, outside=outside)

    def rows_of(self, whole: Tensor) -> Tensor:
        """Its part of what belongs to the whole parameter."""
        return whole[self.start : self.stop] if whole.dim() else whole

    @property
    def forward_cost(self) -> int:
        """Multiply-adds of the calls that use it, a sample."""
        return self.positions * self.groups * self.inside * self.outside

    def pair_cost(self, heads: int, full: bool) -> float:
        return _costs(self.positions, self.groups, self.inside, self.outside, self.numbers, heads, full).get(
            self.method, float(heads * heads if full else heads) * self.numbers
        )


def pieces(
    subject: Subject, calls: list[Call], findings: Findings, heads: int, full: bool, n: int
) -> list[ParameterBlock]:
    """Every chosen parameter as pieces, with the cheapest method for each."""
    found: dict[str, dict[tuple[int, int], list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for k, call in enumerate(calls):
        for t, term in enumerate(call.terms):
            if term.slot.name not in findings.func:
                found[term.slot.name][term.slot.start, term.slot.stop].append((k, t))
    result = []
    for name, leaf in subject.leaves.items():
        rows = len(leaf) if leaf.dim() else 1
        if name in findings.func:
            result.append(ParameterBlock(name, 0, rows, leaf.numel(), (), "func"))
            continue
        ranges = found.get(name, {})
        if _overlap(ranges):
            ranges = {(0, rows): [member for members in ranges.values() for member in members]}
        for (start, stop), members in ranges.items():
            terms = [calls[k].terms[t] for k, t in members]
            layouts = [findings.layouts[k] for k, _ in members]
            numbers = leaf.numel() // rows * (stop - start)
            sizes = [calls[k].shape.numel() // n for k, _ in members]
            result.append(_piece(name, start, stop, numbers, tuple(members), terms, layouts, sizes, heads, full, n))
    return result


def _overlap(ranges: Iterable[tuple[int, int]]) -> bool:
    ordered = sorted(ranges)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ordered))


def _piece(
    name: str,
    start: int,
    stop: int,
    numbers: int,
    members: tuple[tuple[int, int], ...],
    terms: list[Term],
    layouts: list[Layout],
    sizes: list[int],
    heads: int,
    full: bool,
    n: int,
) -> ParameterBlock:
    shapes = [_shape(term, layout, size // numbers, n) for term, layout, size in zip(terms, layouts, sizes)]
    positions = sum(shape[0] for shape in shapes)
    groups, inside = max(shape[1:] for shape in shapes)
    outside = terms[0].outside(numbers, stop - start, groups, inside)
    made = ParameterBlock(name, start, stop, numbers, members, "direct", positions, groups, inside, outside)
    whole = all(term.slot.start == start and term.slot.stop == stop for term in terms)
    kinds = {(*term.kind, *shape[1:]) for term, shape in zip(terms, shapes)}
    if len(kinds) > 1 or not whole or not terms[0].factors:
        return made
    costs = _costs(positions, groups, inside, outside, numbers, heads, full)
    return replace(made, method=min(costs, key=costs.__getitem__))


def _shape(term: Term, layout: Layout, repeats: int, n: int) -> tuple[int, int, int]:
    """(positions, groups, inside) of a term, from its probed input; a vector is summed over `repeats` positions."""
    x = None if term.x is None else layout.read(term.x, term.lead_x, n)[:1]
    return term.extent(x, repeats)


def _costs(s: int, g: int, i: int, o: int, numbers: int, heads: int, full: bool) -> dict[str, float]:
    pairs = heads * heads if full else heads
    forming = 2.0 * heads * numbers * s / PARTNERS
    near = g * s * s * (i + pairs * (o + ELEMENTWISE * (s > 1 and full)) + ELEMENTWISE * (s > 1 and not full))
    return {"kronecker" if s == 1 else "positions": float(near), "direct": float(pairs * numbers) + forming}

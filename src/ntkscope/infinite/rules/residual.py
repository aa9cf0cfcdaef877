"""Sums of branches: `Residual`, `Sum`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import final

from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.infinite.field import Field
from ntkscope.infinite.layer import Context, Layer, Need, Shape
from ntkscope.infinite.registry import layer
from ntkscope.infinite.rules.identity import Identity
from ntkscope.infinite.rules.serial import Serial, serial


@layer
@final
@dataclass(frozen=True)
class Sum(Layer):
    """Branches of the same input, added: Σ′ = Σ_b Σ_b and Θ′ = Σ_b Θ_b.

    That holds when all branches but one end with random weights of their own, possibly followed by pooling; anything else
    is refused, since branches would be correlated.
    """

    branches: tuple[Layer, ...]

    def shape(self, given: Shape, path: str) -> Shape:
        shapes = [b.shape(given, f"{path}.{i}") for i, b in enumerate(self.branches)]
        if len({s.spatial for s in shapes}) != 1:
            raise UsageError(
                f"the branches of the sum at {path!r} end as {', '.join(map(str, shapes))}; expected one shape"
            )
        widths = {s.features for s in shapes if s.features is not None}
        if len(widths) > 1:
            raise UsageError(f"the branches of the sum at {path!r} have widths {sorted(widths)}; expected the same")
        if sum(not b.fresh(False) for b in self.branches) > 1:
            raise UsageError(
                f"more than one branch of the sum at {path!r} ends without random weights, so they are correlated; expected"
                " Dense or Conv at the end of all but one"
            )
        return Shape(
            widths.pop() if widths else None,
            shapes[0].spatial,
            all(s.gaussian for s in shapes),
            any(s.mixed for s in shapes),
        )

    def need(self, out: Need, single: bool) -> Need:
        return max(b.need(out, single) for b in self.branches)

    def fresh(self, before: bool) -> bool:
        return all(b.fresh(before) for b in self.branches)

    def follows_shifts(self, wrap: bool) -> bool:
        return all(b.follows_shifts(wrap) for b in self.branches)

    def affine(self, given: Shape, path: str) -> Iterator[tuple[str, int | None]]:
        for i, branch in enumerate(self.branches):
            yield from branch.affine(given, f"{path}.{i}")

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        fields = branch_fields(self.branches, given, context, path, need)
        if not fields:
            return None
        first = fields[0]
        tangents = [f.ntk for f in fields if f.ntk is not None]
        return Field(
            reduce(lambda a, b: a + b, [f.nngp for f in fields]),
            reduce(lambda a, b: a + b, tangents) if tangents else None,
            first.spatial,
            first.double,
            first.shifts,
            first.wrap,
        )

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        return Added([b.finite(given, width, outputs) for b in self.branches])


def branch_fields(branches: tuple[Layer, ...], given: Field, context: Context, path: str, need: Need) -> list[Field]:
    """The field behind each branch; none of them when nothing is needed, though the variances inside were noted."""
    fields = []
    for i, branch in enumerate(branches):
        wants = branch.need(need, context.single)
        if wants == Need.NOTHING:
            continue
        start = given if wants == Need.FULL else given.same()
        fields.append(branch.propagate(start, context, f"{path}.{i}", need))
    if need == Need.NOTHING:
        return []
    return [f if need == Need.FULL else f.same() for f in fields if f is not None]


class Added(nn.Module):
    """The sum of what modules make of one input."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return reduce(lambda a, b: a + b, [branch(x) for branch in self.branches])


def Residual(*branch: Layer) -> Sum:
    """x + branch(x).

    >>> from ntkscope.infinite import Dense, Relu
    >>> len(Residual(Relu(), Dense()).branches)
    2
    """
    return Sum((Identity(), serial(*branch)))


__all__ = ["Added", "Residual", "Serial", "Sum", "branch_fields"]

"""Sums of branches: `Residual`, `Sum`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.infinite.layer import Layer, Shape
from ntkscope.infinite.registry import layer
from ntkscope.infinite.rules._branches import Branches, BranchModules
from ntkscope.infinite.rules.identity import Identity
from ntkscope.infinite.rules.serial import Serial, serial


@layer
@final
@dataclass(frozen=True)
class Sum(Branches):
    """Branches of the same input, added: Σ′ = Σ_b Σ_b and Θ′ = Σ_b Θ_b.

    That holds when all branches but one end with random weights of their own, possibly followed by pooling; anything else
    is refused, since branches would be correlated.
    """

    def weights(self) -> tuple[float, ...]:
        return (1.0,) * len(self.branches)

    def shape(self, given: Shape, path: str) -> Shape:
        shapes = self.shapes(given, path)
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

    def finite(self, given: Shape, width: int, outputs: int | None) -> nn.Module:
        return Added([b.finite(given, width, outputs) for b in self.branches])


class Added(BranchModules):
    """The sum of the outputs of modules for one input."""

    def forward(self, x: Tensor) -> Tensor:
        return reduce(add, [branch(x) for branch in self.branches])


def Residual(*branch: Layer) -> Sum:
    """x + branch(x).

    Examples:
        >>> from ntkscope.infinite import Dense, Relu
        >>> len(Residual(Relu(), Dense()).branches)
        2
    """
    return Sum((Identity(), serial(*branch)))


__all__ = ["Added", "Residual", "Serial", "Sum"]

"""What sums and concatenations of branches share: every branch sees the same input, and their covariances are added."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

from torch import nn

from ntkscope.infinite.field import Field, Values
from ntkscope.infinite.layer import Context, Layer, Need, Shape


@dataclass(frozen=True)
class Branches(Layer):
    """Branches of the same input; Σ′ = Σ_b w_b Σ_b and Θ′ = Σ_b w_b Θ_b with the weights a subclass gives."""

    branches: tuple[Layer, ...]

    @abstractmethod
    def weights(self) -> tuple[float, ...]:
        """One factor per branch."""

    def need(self, out: Need, single: bool) -> Need:
        return max(b.need(out, single) for b in self.branches)

    def fresh(self, before: bool) -> bool:
        return all(b.fresh(before) for b in self.branches)

    def follows_shifts(self, wrap: bool) -> bool:
        return all(b.follows_shifts(wrap) for b in self.branches)

    def affine(self, given: Shape, path: str) -> Iterator[tuple[str, int | None]]:
        for i, branch in enumerate(self.branches):
            yield from branch.affine(given, f"{path}.{i}")

    def shapes(self, given: Shape, path: str) -> list[Shape]:
        """The output shape of each branch for the given shape."""
        return [b.shape(given, f"{path}.{i}") for i, b in enumerate(self.branches)]

    def propagate(self, given: Field, context: Context, path: str, need: Need) -> Field | None:
        fields = self._fields(given, context, path, need)
        if not fields:
            return None
        first, weighed = fields[0], list(zip(fields, self.weights()))
        tangents = [_times(f.ntk, w) for f, w in weighed if f.ntk is not None]
        return Field(
            reduce(add, [_times(f.nngp, w) for f, w in weighed]),
            reduce(add, tangents) if tangents else None,
            first.spatial,
            first.double,
            first.shifts,
            first.wrap,
        )

    def _fields(self, given: Field, context: Context, path: str, need: Need) -> list[Field]:
        """The field behind each branch; none of them when nothing is needed, though the variances inside were noted."""
        fields = []
        for i, branch in enumerate(self.branches):
            wants = branch.need(need, context.single)
            if wants == Need.NOTHING:
                continue
            start = given if wants == Need.FULL else given.same()
            fields.append(branch.propagate(start, context, f"{path}.{i}", need))
        if need == Need.NOTHING:
            return []
        return [f if need == Need.FULL else f.same() for f in fields if f is not None]


def _times(values: Values, weight: float) -> Values:
    return values if weight == 1 else values * weight


class BranchModules(nn.Module):
    """Modules that see one input; a subclass says how their outputs are combined."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

"""Where the samples sit in a tensor the model made: along which axis, folded with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How to read the leading (batch-like) axes of a tensor as (samples, positions).

    `axis`: the leading axis that holds the samples, or None when the tensor does not depend on the sample at all (a
    table of positions): every sample then sees the same one. `fold`: that axis is samples times something, samples
    outermost ("outer", as `x.reshape(n * t, d)` makes) or innermost ("inner", as `torch.cat([x1, x2])` makes).
    """

    axis: int | None
    fold: str = "none"

    def written(self) -> Layout:
        """The layout of the call's output: one that all samples share is widened along a first axis."""
        return Layout(0) if self.axis is None else self

    def read(self, value: Tensor, lead: int, n: int) -> Tensor:
        """(…lead axes…, rest) to (n, positions, rest)."""
        rest = value.shape[lead:]
        if self.axis is None:
            return value.reshape(1, -1, *rest).expand(n, -1, *rest)
        value = value.movedim(self.axis, 0)
        if self.fold == "outer":
            value = value.unflatten(0, (n, value.shape[0] // n))
        elif self.fold == "inner":
            value = value.unflatten(0, (value.shape[0] // n, n)).movedim(1, 0)
        return value.reshape(n, -1, *rest)


def candidates(lead: Sequence[int], n: int) -> list[Layout]:
    """Every way samples can sit in leading axes of sizes `lead`, likeliest first.

    >>> [(c.axis, c.fold) for c in candidates((3, 5), 3)]
    [(0, 'none')]
    >>> [(c.axis, c.fold) for c in candidates((6, 3), 3)]
    [(1, 'none'), (0, 'outer'), (0, 'inner')]
    """
    whole = [Layout(axis) for axis, size in enumerate(lead) if size == n]
    multiples = [axis for axis, size in enumerate(lead) if size > n and size % n == 0]
    return whole + [Layout(axis, fold) for axis in multiples for fold in ("outer", "inner")]

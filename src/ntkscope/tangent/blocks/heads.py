"""Heads: which linear combinations of a model's outputs are differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import UsageError, generator


@dataclass(frozen=True)
class OutputSketch:
    """`k` random sign combinations of all outputs in the place of the outputs themselves.

    With `S` of signs ±1, `(1/k) Σ_j <∇(S f)_j(x), ∇(S f)_j(x')>` is an unbiased estimate of the trace-NTK for the cost of k
    backward passes whatever the number of outputs; `K.meta["error"]` holds its standard error.

    Examples:
        >>> OutputSketch(16).signs(4, 10).shape
        torch.Size([10, 16])
    """

    k: int
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 2:
            raise UsageError(f"got OutputSketch(k={self.k!r}); expected a whole number of combinations, at least 2")

    def signs(self, _: int, width: int) -> Tensor:
        """(outputs, k) signs, the same wherever they are drawn."""
        draw = generator(self.seed, "output sketch", width, self.k)
        return torch.randint(0, 2, (width, self.k), generator=draw, dtype=torch.float64) * 2 - 1


@dataclass(frozen=True)
class Heads:
    """Each of `outputs` (all when None), their sum, or random combinations; of these, those of one `group`.

    All are multiplied by `unit`, a power of two that keeps products of their gradients in range; None: an engine chooses it.
    """

    outputs: tuple[int, ...] | None = None
    summed: bool = False
    sketch: OutputSketch | None = None
    group: tuple[int, int] | None = None
    unit: float | None = 1.0

    def __call__(self, values: Tensor) -> Tensor:
        values = values if self.unit in (1, None) else values * self.unit
        if self.sketch is not None:
            signs = self.sketch.signs(0, values.shape[1]).to(values) * self.sketch.k**-0.5
            return values @ (signs if self.group is None else signs[:, slice(*self.group)])
        if self.outputs is not None:
            values = values[:, list(self.outputs)]
        if self.summed:
            values = values.sum(1, keepdim=True)
        return values if self.group is None else values[:, slice(*self.group)]

    def sizes(self, values: Tensor) -> Tensor:
        """How large what each head adds up is, whether or not it cancels: rounding is a share of this, not of the head.

        >>> Heads(summed=True).sizes(torch.tensor([[3.0, -2.0]])).tolist()
        [[5.0]]
        """
        terms = values.double().abs()  # in which no sum of shorter numbers overflows
        if self.sketch is not None:
            shares = torch.full((terms.shape[1], self.width(terms.shape[1])), self.sketch.k**-0.5)
            return terms @ shares.to(terms) * (self.unit or 1.0)
        return self(terms)

    def count(self, width: int) -> int:
        """How many outputs are chosen of `width`; a wrong choice is refused."""
        chosen = list(range(width)) if self.outputs is None else list(self.outputs)
        bad = [k for k in chosen if not 0 <= k < width]
        if bad or not chosen:
            raise UsageError(f"got outputs={chosen} for a model with {width} outputs; expected some of 0 … {width - 1}")
        return len(chosen)

    def width(self, outputs: int) -> int:
        """How many heads there are, for so many outputs of the model."""
        if self.group is not None:
            return self.group[1] - self.group[0]
        if self.sketch is not None:
            return self.sketch.k
        return 1 if self.summed else self.count(outputs)

    def part(self, start: int, stop: int) -> Heads:
        """The heads start … stop of these."""
        return replace(self, group=(start, stop))


def as_heads(outputs: Any, *, summed: bool = False) -> Heads:
    """What `outputs=` means: None, a number, several numbers (a list, an array, a tensor), or an `OutputSketch`.

    >>> as_heads([0, 2]).outputs, as_heads(1).outputs, as_heads(None).outputs
    ((0, 2), (1,), None)
    """
    if outputs is None:
        return Heads(summed=summed)
    if isinstance(outputs, OutputSketch):
        if summed:
            raise UsageError(
                "got outputs=OutputSketch(...) for a kernel of the summed outputs, which takes one backward pass anyway;"
                " leave outputs= out, or use 'trntk', 'trntk0' or 'proj-trntk'"
            )
        return Heads(sketch=outputs)
    return Heads(tuple(chosen_outputs(outputs)), summed)


def chosen_outputs(outputs: Any) -> list[int]:
    """Numbers of outputs as plain integers; booleans, fractions and texts are refused."""
    if isinstance(outputs, Tensor | np.ndarray):
        outputs = outputs.tolist()
    several = isinstance(outputs, Sequence | set | frozenset) and not isinstance(outputs, str)
    members = list(outputs) if several else [outputs]
    members = [k.item() if isinstance(k, Tensor | np.generic) and np.ndim(k) == 0 else k for k in members]
    if any(isinstance(k, bool) or not isinstance(k, int) for k in members):
        raise UsageError(
            f"got outputs={outputs!r}; expected the numbers of outputs, such as outputs=3 or outputs=[0, 2] (for a mask, pass"
            " mask.nonzero().flatten())"
        )
    return members

"""Samples that are run apart from the rest of their block, to see whether they are the same without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

LEAST = 16  # other samples up to which all are run again; of more, an eighth


@dataclass(frozen=True)
class Some:
    """Some samples of a block, as slices: a list of indices would be sent to a GPU, and everything before it waited for."""

    parts: tuple[slice, ...]

    def __call__(self, values: Tensor) -> Tensor:
        """A copy of their rows."""
        return torch.cat([values[part] for part in self.parts])

    def count(self, n: int) -> int:
        return sum(len(range(*part.indices(n))) for part in self.parts)

    @classmethod
    def others(cls, one: int, n: int) -> Some:
        """All samples but one; of many, one in eight."""
        if n - 1 <= LEAST:
            return cls((slice(0, one), slice(one + 1, n)))
        return cls((slice((one + 1 + one // 8 % 7) % 8, n, 8),))


class HeldOut(NamedTuple):
    """Some samples that were run without the others: their heads, and the outputs those are made of."""

    rows: Some
    values: Tensor
    outputs: Tensor

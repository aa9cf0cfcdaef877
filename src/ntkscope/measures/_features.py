"""Features of a layer as float64 blocks of rows: from a tensor, an array, or a store on disk, never all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import Gram
from ntkscope.storage import FeatureStore

NUMBERS = 1 << 25  # of one block: 256 MiB


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of features, one per item, and where they are computed with: the device they came on."""

    values: Tensor | FeatureStore
    items: int
    width: int
    device: torch.device

    def blocks(self) -> Iterator[tuple[slice, Float64[Tensor, "b p"]]]:
        """Spans of rows with their features, in order; NaN and infinity are refused."""
        for rows, block in self._spans():
            wide = block.to(torch.float64)
            good = torch.isfinite(wide).all(1)
            if not bool(good.all()):
                bad = (~good).nonzero().flatten() + rows.start
                raise NumericalError(
                    f"the features of {len(bad)} items hold NaN or infinity, the first of item {int(bad[0])}; drop those"
                    " items or find where they come from"
                )
            yield rows, wide

    def _spans(self) -> Iterator[tuple[slice, Tensor]]:
        if isinstance(self.values, FeatureStore):
            for k in range(len(self.values)):
                yield self.values.span(k), self.values.read(k)
            return
        step = max(1, NUMBERS // self.width)
        for start in range(0, self.items, step):
            rows = slice(start, min(self.items, start + step))
            yield rows, self.values[rows]


def features_of(values: Any, name: str = "the features") -> Features:
    """Features (items, width), each item's flattened: a tensor, an array, a list, or a `FeatureStore`.

    >>> features_of([[1.0, 2.0]]).width
    2
    """
    if isinstance(values, FeatureStore):
        return Features(values, values.n, values.width, torch.device("cpu"))
    if isinstance(values, Gram):
        raise UsageError(f"got {name} as {values!r}; expected features (items, width), not products of them")
    array = values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if array.is_complex() or array.ndim < 2 or 0 in array.shape:
        raise UsageError(
            f"got {name} of shape {tuple(array.shape)} and {array.dtype}; expected real numbers (items, width), none empty"
        )
    flat = array.flatten(1)
    return Features(flat, len(flat), flat.shape[1], flat.device)

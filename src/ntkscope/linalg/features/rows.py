"""Rows of features that pass by in blocks, from memory or from disk, and their columns' means and deviations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import from_numpy, plain_array
from ntkscope.linalg.grams.gram import Gram

BLOCK = 1 << 26  # bytes of a float64 block
CACHED = 1 << 23  # bytes of one that a processor's cache holds


@runtime_checkable
class StoredRows(Protocol):
    """Rows on disk, in chunks: what a `FeatureStore` is, seen from below."""

    @property
    def n(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int:
        """The number of chunks."""
        ...

    def span(self, k: int) -> slice: ...

    def read(self, k: int) -> Tensor: ...


Features: TypeAlias = Tensor | np.ndarray | StoredRows


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """(n, width) features, read in blocks of at most `step` rows."""

    source: Tensor | StoredRows
    step: int

    @classmethod
    def of(cls, features: Any, room: int = BLOCK) -> FeatureRows:
        """Features from a tensor, an array or a store, in blocks whose float64 copies take at most `room` bytes."""
        if isinstance(features, np.ndarray):
            features = from_numpy(features)
        if isinstance(features, Tensor):
            features = features.detach()
            if features.dim() != 2 or not features.is_floating_point() or 0 in features.shape:
                raise UsageError(
                    f"got features of shape {tuple(features.shape)} and {features.dtype}; expected floating-point rows"
                    " (n, width), none empty"
                )
        elif not isinstance(features, StoredRows):
            raise UsageError(
                f"got features of type {type(features).__name__}; expected a tensor, an array or a FeatureStore of rows"
                " (n, width)"
            )
        width = features.shape[1] if isinstance(features, Tensor) else features.width
        return cls(features, max(1, room // (8 * width)))

    @property
    def n(self) -> int:
        return self.source.shape[0] if isinstance(self.source, Tensor) else self.source.n

    @property
    def width(self) -> int:
        return self.source.shape[1] if isinstance(self.source, Tensor) else self.source.width

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        return self.source.device if isinstance(self.source, Tensor) else torch.device("cpu")

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "rows width"]]]:
        """Every block as it lies, with its rows' numbers."""
        if isinstance(self.source, Tensor):
            pieces: Iterator[tuple[int, Tensor]] = iter([(0, self.source)])
        else:
            source = self.source
            pieces = ((source.span(k).start, source.read(k)) for k in range(len(source)))
        for start, rows in pieces:
            for first in range(0, len(rows), self.step):
                block = rows[first : first + self.step]
                yield slice(start + first, start + first + len(block)), block


@dataclass(frozen=True, eq=False)
class Standardisation:
    """`(x - mean) / scale` for every column, in float64."""

    mean: Float64[Tensor, " p"]
    scale: Float64[Tensor, " p"]

    def __call__(self, block: Float[Tensor, "rows p"], dtype: torch.dtype = torch.float64) -> Float[Tensor, "rows p"]:
        """A standardised copy in `dtype`, on the device of the means."""
        values = block.to(self.mean.device, dtype, copy=True)
        return values.sub_(self.mean.to(dtype)).div_(self.scale.to(dtype))


def column_moments(rows: FeatureRows) -> tuple[Float64[Tensor, " p"], Float64[Tensor, " p"]]:
    """Means and variances (1/n) of the columns in float64, from one pass; blocks are merged by Chan, Golub & LeVeque (1983).

    >>> mean, variance = column_moments(FeatureRows.of(torch.tensor([[1.0], [3.0]])))
    >>> mean.tolist(), variance.tolist()
    ([2.0], [1.0])
    """
    mean = torch.zeros(rows.width, dtype=torch.float64, device=rows.device)
    squares, count = torch.zeros_like(mean), 0
    small = max(1, CACHED // (8 * rows.width))
    for _, block in rows.blocks():
        for part in block.split(small):
            values = part.to(torch.float64, copy=True)
            ones = values.new_ones(len(values))
            centre = values.T @ ones / len(values)
            values.sub_(centre).mul_(values)
            apart, total = centre - mean, count + len(values)
            squares += values.T @ ones + apart.square() * (count * len(values) / total)
            mean += apart * (len(values) / total)
            count = total
    if not bool(torch.isfinite(squares).all()):
        bad = (~torch.isfinite(squares)).nonzero().flatten()
        raise NumericalError(
            f"features hold NaN or infinity in {len(bad)} columns, the first {int(bad[0])}; check the inputs they were"
            " computed from"
        )
    return mean, squares / count


def standardisation(rows: FeatureRows, standardise: bool) -> tuple[Standardisation, Float64[Tensor, " p"]]:
    """Means and deviations of the columns, and the columns' variances; with `standardise=False`, scale 1.

    A column that is constant up to the rounding of its mean has scale 1, and its first entry for a mean: nothing is left of it.
    """
    mean, variance = column_moments(rows)
    noise = (rows.n * torch.finfo(torch.float64).eps * mean.abs()).square()
    constant = variance <= noise
    first = next(rows.blocks())[1][0].to(mean)
    mean, variance = torch.where(constant, first, mean), torch.where(constant, torch.zeros_like(variance), variance)
    scale = torch.where(variance > 0, variance.sqrt(), torch.ones_like(variance)) if standardise else mean.new_ones(())
    return Standardisation(mean, scale.expand(rows.width)), variance


def features_of(values: Any) -> FeatureRows:
    """Features (items, width), each item's flattened: a tensor, an array, a list, or a `FeatureStore`.

    >>> features_of([[1.0, 2.0]]).width
    2
    """
    if isinstance(values, StoredRows):
        return FeatureRows.of(values, BLOCK)
    if isinstance(values, Gram):
        raise UsageError(f"got features as {values!r}; expected rows of features (items, width), not their products")
    array = values.detach() if isinstance(values, Tensor) else from_numpy(plain_array(values, "features"))
    if array.is_complex() or array.ndim < 2 or 0 in array.shape:
        raise UsageError(
            f"got features of shape {tuple(array.shape)} and {array.dtype}; expected real numbers (items, width), none empty"
        )
    flat = array.flatten(1)
    return FeatureRows.of(flat if flat.is_floating_point() else flat.double(), BLOCK)


def distinct_rows(matrix: Float64[Tensor, "m n"]) -> Int64[Tensor, " k"]:
    """Indices of the rows that equal no earlier row, entry by entry, ascending; O(m n).

    >>> distinct_rows(torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)).tolist()
    [0, 1, 3]
    """
    entries = np.ascontiguousarray(matrix.detach().cpu().numpy()) + 0.0  # -0 is 0
    first: dict[bytes, int] = {}
    for number, row in enumerate(entries):
        first.setdefault(sha256(row.data).digest(), number)
    return torch.tensor(list(first.values()), dtype=torch.int64, device=matrix.device)


def finite_blocks(rows: FeatureRows) -> Iterator[tuple[slice, Float64[Tensor, "b p"]]]:
    """Spans of rows with their features in float64, in order; NaN and infinity are refused."""
    for span, block in rows.blocks():
        wide = block.to(torch.float64)
        good = torch.isfinite(wide).all(1)
        if not bool(good.all()):
            bad = (~good).nonzero().flatten() + span.start
            raise NumericalError(
                f"the features of {len(bad)} items hold NaN or infinity, the first of item {int(bad[0])}; drop those items"
                " or find where they come from"
            )
        yield span, wide

"""Features of a layer as float64 blocks of rows: from a tensor, an array, or a store on disk, never all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import from_numpy, plain_array
from ntkscope.linalg import Gram
from ntkscope.linalg.features.rows import BLOCK, FeatureRows, StoredRows


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

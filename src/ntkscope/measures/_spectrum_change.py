"""How one spectrum differs from another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import plain_array
from ntkscope.linalg import Gram

Spectrum: TypeAlias = Float64[np.ndarray, " n"]
QUANTILES = 200


@dataclass(frozen=True, eq=False)
class SpectrumChange:
    """How a spectrum changed."""

    ks: float
    """Kolmogorov–Smirnov distance: the largest difference between the shares of values below any point."""
    wasserstein: float
    """Mean distance by which values moved, the k-th largest to the k-th largest."""
    quantiles: Float64[np.ndarray, "2 q"]
    """Of both, at the same probabilities, ascending: the axes of a Q–Q plot."""
    top_shift: float
    """Relative change of the largest value."""


def compare(before: Any, after: Any) -> SpectrumChange:
    """How far the spectrum `after` is from `before`: distances, quantiles of both, shift of the largest value.

    Each is a list of values, a matrix (its singular values count) or a Gram (its eigenvalues). O(n log n) from values.

    Examples:
        >>> change = compare([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 8.0])
        >>> change.ks, change.wasserstein, change.top_shift
        (0.25, 1.0, 1.0)
    """
    one, two = spectrum(before, "the spectrum before"), spectrum(after, "the spectrum after")
    everywhere = np.sort(np.concatenate([one, two]))
    shares = [np.searchsorted(np.sort(values), everywhere, side="right") / len(values) for values in (one, two)]
    gaps = np.abs(shares[0] - shares[1])
    levels = (np.arange(min(QUANTILES, len(one), len(two))) + 0.5) / min(QUANTILES, len(one), len(two))
    top = float(two[0] / one[0] - 1) if one[0] else math.nan
    return SpectrumChange(
        ks=float(gaps.max()),
        wasserstein=float((gaps[:-1] * np.diff(everywhere)).sum()),
        quantiles=np.stack([np.quantile(values, levels) for values in (one, two)]),
        top_shift=top,
    )


def spectrum(values: Any, name: str) -> Spectrum:
    """Values descending, in float64: as given, singular values of a matrix, eigenvalues of a Gram.

    Examples:
        >>> spectrum(np.diag([1.0, 3.0, 2.0]), "K")
        array([3., 2., 1.])
    """
    if isinstance(values, Gram):
        array = values.eigvalsh().detach().cpu().double().numpy()
    else:
        array = plain_array(values)
        if array.ndim == 2 and 0 not in array.shape and np.isfinite(array).all():
            array = np.linalg.svd(array.astype(np.float64), compute_uv=False)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "fiu":
        raise UsageError(f"got {name} as {array.dtype} of shape {array.shape}; expected values, a matrix or a Gram")
    if not np.isfinite(array).all():
        raise NumericalError(
            f"{name} holds {int((~np.isfinite(array)).sum())} NaN or infinite values; see where they come from"
        )
    return np.sort(array.astype(np.float64))[::-1]

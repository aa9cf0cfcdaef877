"""Spectra in logarithms: their shape whatever their scale."""

from __future__ import annotations

from typing import Any

import numpy as np


def in_logarithms(values: Any, *, scaled: bool = True) -> np.ndarray:
    """Logarithms of the positive eigenvalues, ascending, over their mean: the spectrum's shape whatever its scale.

    >>> in_logarithms([0.0, 1.0, 3.0]).round(4).tolist()
    [-0.6931, 0.4055]
    """
    array = np.sort(np.asarray(values, dtype=np.float64))
    array = array[array > 1e-12 * array[-1]]
    return np.log(array / (array.mean() if scaled else 1.0))


def quantile_slope(before: Any, after: Any, share: float = 0.5) -> float:
    """The slope of the Q–Q plot of two log-spectra over the upper `share` of quantiles; above 1 where the tail got heavier.

    >>> quantile_slope([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 6.0])
    2.0
    """
    q = np.linspace(1 - share, 1, 101)
    x, y = np.quantile(before, q), np.quantile(after, q)
    return round(float(np.polyfit(x, y, 1)[0]), 9)

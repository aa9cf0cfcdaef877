"""How far two spectra are apart in shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats


def kolmogorov_smirnov(before: Any, after: Any) -> float:
    """The largest gap between the two distribution functions.

    >>> kolmogorov_smirnov([1.0, 2.0], [1.5, 3.0])
    0.5
    """
    return float(stats.ks_2samp(before, after).statistic)


def in_logarithms(values: Any) -> np.ndarray:
    """Logarithms of the positive eigenvalues over their mean, ascending: the spectrum's shape whatever its scale.

    >>> in_logarithms([0.0, 1.0, 3.0]).round(4).tolist()
    [-0.6931, 0.4055]
    """
    array = np.sort(np.asarray(values, dtype=np.float64))
    array = array[array > 1e-12 * array[-1]]
    return np.log(array / array.mean())


def quantile_slope(before: Any, after: Any, share: float = 0.5) -> float:
    """The slope of the Q–Q plot of two log-spectra over the upper `share` of quantiles; above 1 where the tail got heavier.

    >>> quantile_slope([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 6.0])
    2.0
    """
    q = np.linspace(1 - share, 1, 101)
    x, y = np.quantile(before, q), np.quantile(after, q)
    return round(float(np.polyfit(x, y, 1)[0]), 9)


def power_law_preferred(values: Any, share: float = 0.1) -> dict[str, float]:
    """The upper `share` of the values by a power law against an exponential law, both starting at the least of them.

    Both by maximum likelihood: `α = 1 + m / Σ ln(x/x₀)`, `1/λ = mean(x - x₀)`. `gain`: nats per value that the power law is
    more likely by; `z`: Vuong's statistic of that gain. `share` is of the positive values, and at least 10 of them are taken.

    >>> found = power_law_preferred(np.arange(1, 2001) ** -0.5)  # a tail of exponent 3
    >>> round(found["alpha"], 1), found["gain"] > 0
    (3.0, True)
    """
    array = np.sort(np.asarray(values, dtype=np.float64))
    array = array[array > 1e-12 * array[-1]]
    upper = array[-max(10, round(share * len(array))) :]
    least, rest = upper[0], upper[1:]
    alpha = 1 + len(rest) / np.log(rest / least).sum()
    scale = (rest - least).mean()
    power = np.log((alpha - 1) / least) - alpha * np.log(rest / least)
    exponential = -np.log(scale) - (rest - least) / scale
    gain = power - exponential
    z = float(gain.mean() / gain.std() * np.sqrt(len(gain))) if gain.std() > 0 else 0.0
    return {"alpha": float(alpha), "gain": float(gain.mean()), "z": z, "values": len(rest)}

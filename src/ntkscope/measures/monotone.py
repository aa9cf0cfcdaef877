"""The best invertible monotone map from a surrogate's scores to a network's, and how much it explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from ntkscope.core import NumericalError
from ntkscope.core.arguments import Vector, two_vectors, vector
from ntkscope.measures.registry import measure


@dataclass(frozen=True)
class MonotoneFit:
    """The map `p̂ = σ(slope · z + intercept)` from log-odds z, and R² of the network's probabilities.

    `r2` with the map, `r2_before` without one (the surrogate's own probabilities), `r2_isotonic` with the best
    non-decreasing map of any shape: what no monotone map can exceed, and not invertible itself.
    """

    slope: float
    intercept: float
    r2: float
    r2_before: float
    r2_isotonic: float

    def log_odds(self, surrogate: Any) -> Vector:
        """The surrogate's log-odds, mapped; the order of the items stays."""
        return self.slope * vector(surrogate, "log-odds") + self.intercept

    def probability(self, surrogate: Any) -> Vector:
        """The mapped probabilities."""
        return expit(self.log_odds(surrogate))


def monotone_r2(surrogate: Any, network: Any) -> MonotoneFit:
    """Fit an invertible map from the surrogate's correct-class log-odds to the network's, by least squares in probability.

    `p̂_i = σ(α z_i + β)`, α > 0, minimises `Σ (p̂_i - p_i)²`; `R² = 1 - Σ (p̂_i - p_i)² / Σ (p_i - p̄)²`. α = 1, β = 0 is
    no map at all, so `r2 ≥ r2_before`; the map keeps order, so Kendall's τ does not change. The published text fits "an
    invertible map" without naming its family; this family is ours. O(n) per step; O(n log n) for the isotonic one.

    Examples:
        >>> z = np.linspace(-3, 3, 50)
        >>> fit = monotone_r2(z, 2 * z + 1)
        >>> round(fit.slope, 4), round(fit.intercept, 4), round(fit.r2, 6), fit.r2_before < 0.95
        (2.0, 1.0, 1.0, True)
    """
    z, other = two_vectors(surrogate, network)
    p = expit(other)
    spread = float(np.square(p - p.mean()).sum())
    if spread == 0:
        raise NumericalError(
            "the network gives every item the same correct-class probability (in double precision): R² is undefined"
        )

    def residuals(at: np.ndarray) -> Vector:
        return expit(math.exp(min(at[0], 300.0)) * z + at[1]) - p

    def slopes(at: np.ndarray) -> np.ndarray:
        alpha = math.exp(min(at[0], 300.0))
        q = expit(alpha * z + at[1])
        return np.stack([q * (1 - q) * alpha * z, q * (1 - q)], axis=1)

    narrowed = math.log(max(float(other.std()), 1e-3) / max(float(z.std()), 1e-3))
    starts = [np.array([0.0, 0.0]), np.array([narrowed, float(other.mean() - math.exp(narrowed) * z.mean())])]
    ends = [least_squares(residuals, start, slopes, method="trf").x for start in starts]
    best = min([starts[0], *ends], key=lambda at: float(np.square(residuals(at)).sum()))
    isotonic = IsotonicRegression(out_of_bounds="clip").fit(z, p).predict(z)

    def r2(fitted: Vector) -> float:
        return 1 - float(np.square(fitted - p).sum()) / spread

    return MonotoneFit(
        slope=math.exp(min(best[0], 300.0)),
        intercept=float(best[1]),
        r2=r2(residuals(best) + p),
        r2_before=r2(expit(z)),
        r2_isotonic=r2(isotonic),
    )


@measure("monotone-r2", of="two scores", high=1, best=1, squares=True)
def monotone_r2_value(surrogate: Any, network: Any) -> float:
    """`monotone_r2(...).r2` alone.

    Examples:
        >>> round(monotone_r2_value([-1.0, 0.0, 2.0], [-2.0, 0.0, 4.0]), 6)
        1.0
    """
    return monotone_r2(surrogate, network).r2

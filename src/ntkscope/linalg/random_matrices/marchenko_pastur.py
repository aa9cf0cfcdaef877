"""The Marchenko–Pastur law: where the eigenvalues of a pure-noise covariance matrix lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import plain_array
from ntkscope.core.checked import Positive

Values = TypeVar("Values", float, np.ndarray, Tensor)
Array: TypeAlias = np.ndarray


def elementwise(function: Callable[[Array], Array], x: Values) -> Values:
    """`function` of float64 values, handed back as what `x` was: a float, an array or a tensor on its device."""
    if isinstance(x, Tensor):
        values = function(x.detach().cpu().to(torch.float64).numpy())
        return torch.from_numpy(np.ascontiguousarray(values)).to(x.device)
    array = plain_array(x, "x")
    if array.dtype.kind not in "fiub":
        raise UsageError(f"got x={x!r:.200}; expected real numbers")
    values = function(array.astype(np.float64))
    return values if array.ndim else float(values)  # type: ignore[return-value]


@dataclass(frozen=True)
class MarchenkoPastur:
    """The law of the eigenvalues of `W Wᵀ / n` for W (m, n) of independent entries of mean 0 and standard deviation `scale`.

    `ratio` is m / n. For m > n a share `1 - n/m` of the eigenvalues is 0 (`atom`); the rest lie between `edges`.
    """

    ratio: float
    scale: float

    @property
    def edges(self) -> tuple[float, float]:
        """`scale² (1 ± √ratio)²`: where the continuous part begins and ends."""
        root = math.sqrt(self.ratio)
        return self.scale**2 * (1 - root) ** 2, self.scale**2 * (1 + root) ** 2

    @property
    def atom(self) -> float:
        """The share of eigenvalues that are exactly 0."""
        return max(0.0, 1 - 1 / self.ratio)

    def density(self, x: Values) -> Values:
        """`√((b - x)(x - a)) / (2π scale² ratio x)` between the edges a and b, 0 elsewhere; the atom is not part of it."""
        return elementwise(self._density, x)

    def cdf(self, x: Values) -> Values:
        """The share of eigenvalues up to x, the atom at 0 included."""
        return elementwise(self._cdf, x)

    def quantile(self, q: Values) -> Values:
        """The smallest x with `cdf(x) ≥ q`, by bisection to the last digit."""
        return elementwise(self._quantile, q)

    def _density(self, x: Array) -> Array:
        low, high = self.edges
        inside = (x > low) & (x < high)
        y = np.where(inside, x, (low + high) / 2)
        values = np.sqrt((high - y) * (y - low)) / (2 * np.pi * self.scale**2 * self.ratio * y)
        return np.where(inside, values, 0.0)

    def _cdf(self, x: Array) -> Array:
        low, high = self.edges
        angle = np.arccos(np.clip((2 * x - low - high) / (high - low), -1, 1))  # 0 at the upper edge, π at the lower
        return np.where(x < 0, 0.0, np.where(x >= high, 1.0, 1 - self._upper(angle)))

    def _upper(self, angle: Array) -> Array:
        """The mass between `x(angle) = scale² (1 + ratio + 2 √ratio cos angle)` and the upper edge.

        With `r = √ratio` the mass element is `2 sin² t / (π (1 + r² + 2r cos t)) dt`, whose integral is elementary.
        """
        r = math.sqrt(self.ratio)
        half = angle / 2  # tan(t/2) |1-r|/(1+r) by arctan2: no overflow at π, 0 times its limit at r = 1
        wound = np.arctan2(abs(1 - r) * np.sin(half), (1 + r) * np.cos(half))
        total = (1 + r * r) * angle - 2 * r * np.sin(angle) - 2 * abs(1 - r * r) * wound
        return total / (2 * np.pi * r * r)

    def _quantile(self, q: Array) -> Array:
        if not bool(((q >= 0) & (q <= 1)).all()):
            raise UsageError("got a probability outside [0, 1]; expected shares of the eigenvalues, between 0 and 1")
        mass = 1 - q
        near, far = np.zeros_like(q), np.full_like(q, np.pi)  # angles whose upper mass is below and above what is asked
        for _ in range(60):
            middle = (near + far) / 2
            more = self._upper(middle) > mass
            near, far = np.where(more, near, middle), np.where(more, middle, far)
        low, high = self.edges
        inner = (low + high) / 2 + (high - low) / 2 * np.cos((near + far) / 2)
        at_zero = (q <= self.atom) if self.atom else np.zeros_like(q, dtype=bool)
        return np.where(at_zero, 0.0, np.clip(inner, low, high))


def marchenko_pastur(ratio: Positive, scale: Positive = 1.0) -> MarchenkoPastur:
    """The law of the eigenvalues of `W Wᵀ / n`, W (m, n) of independent entries of deviation `scale`, `ratio = m / n`.

    Exact in the limit of large m and n, whatever the law of the entries, if its variance is finite. Squared singular values
    of W itself are n times as large. Marchenko & Pastur (1967); the edge of Figure 20 of Wang et al. (2023).

    Examples:
        >>> [round(edge, 4) for edge in marchenko_pastur(1.5).edges]
        [0.0505, 4.9495]
        >>> marchenko_pastur(0.5).cdf(10.0)
        1.0
    """
    return MarchenkoPastur(float(ratio), float(scale))

"""Two samples as one: their vectors below each other, centred, and the one decomposition that every test uses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64

from ntkscope.core import UsageError

FEWEST = 20  # items in a sample
NEGLIGIBLE = 1e-10  # part of the largest variance below which an eigenvalue of a product says nothing


@dataclass(frozen=True, eq=False)
class Pooled:
    """Vectors of both samples (n + m, p), those of the first one above, minus their common mean."""

    centred: Float64[np.ndarray, "n p"]
    first: int

    @property
    def second(self) -> int:
        return len(self.centred) - self.first

    @cached_property
    def decomposition(self) -> tuple[Float64[np.ndarray, "n r"], Float64[np.ndarray, " r"]]:
        """U and s of `X = U diag(s) Vᵀ`, of the rank of X, largest first; O(N p min(N, p)).

        From the smaller of the two products of X with itself; where all directions count (p far below N) and a product would
        lose some of them, from X itself.
        """
        X = self.centred
        n, p = X.shape
        if p <= n:
            values, V = np.linalg.eigh(X.T @ X)
            values, V = values[::-1], V[:, ::-1]
            kept = values > NEGLIGIBLE * values[0]
            if not kept.all() and p <= n // 2:
                U, s, _ = np.linalg.svd(X, full_matrices=False)
                kept = s > np.finfo(float).eps * n * s[0]
                return U[:, kept], s[kept]
            s = np.sqrt(values[kept])
            return (X @ V[:, kept]) / s, s
        values, U = np.linalg.eigh(X @ X.T)
        values, U = values[::-1], U[:, ::-1]
        kept = values > NEGLIGIBLE * values[0]
        return U[:, kept], np.sqrt(values[kept])

    def components(self, count: int) -> Float64[np.ndarray, "n d"]:
        """Scores on the first principal components of both samples together, at most `count`."""
        U, s = self.decomposition
        return U[:, :count] * s[:count]

    def leading(self, count: int) -> Pooled:
        """The same samples seen through their first principal components alone."""
        return Pooled(self.components(count), self.first)

    @property
    def shares(self) -> Float64[np.ndarray, " r"]:
        """Each component's share of the variance."""
        _, s = self.decomposition
        return np.square(s) / np.square(s).sum()


def pool(a: Float64[np.ndarray, "n p"], b: Float64[np.ndarray, "m q"]) -> Pooled:
    """Both samples, if they can be compared: at least 20 items each, of one width, finite, not constant."""
    for name, sample in (("a", a), ("b", b)):
        if len(sample) < FEWEST:
            raise UsageError(
                f"{name} has {len(sample)} items; expected at least {FEWEST}, below which no test tells much"
            )
        bad = ~np.isfinite(sample).all(1)
        if bad.any():
            raise UsageError(
                f"the embedding of {name} holds NaN or infinity for {int(bad.sum())} items, the first at index"
                f" {int(bad.argmax())}; expected finite numbers: clean or drop them"
            )
    if a.shape[1] != b.shape[1]:
        raise UsageError(
            f"a is embedded in {a.shape[1]} dimensions and b in {b.shape[1]}; expected the same: embed both in the same way"
        )
    values = np.concatenate([a, b])
    if a.shape[1] == 0 or (values == values[0]).all():
        raise UsageError(
            "the embedding gives the same vector for every item; expected one that varies: choose another layer"
        )
    values = np.where((values != values[0]).any(0), values, 0.0)  # a large constant would round the others away
    scale = np.abs(values).max()
    centred = values / scale - (values / scale).mean(0)  # by the scale first: squares of 1e200 would be infinite
    if not np.square(centred).sum() > np.finfo(float).eps ** 2 * centred.size:
        raise UsageError("the embedding varies by less than rounding; expected one that varies: choose another layer")
    return Pooled(centred, len(a))

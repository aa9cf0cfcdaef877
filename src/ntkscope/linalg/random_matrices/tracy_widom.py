"""The Tracy–Widom laws: how the largest eigenvalue of pure noise fluctuates."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import airy, airye

from ntkscope.core import UsageError
from ntkscope.linalg.random_matrices.marchenko_pastur import Array, Values, elementwise
from ntkscope.linalg.random_matrices.tracy_widom_table import COEFFICIENTS, EDGES

LOWEST, HIGHEST = -14.0, 40.0  # below the law is 0 to 1e-40, above its complement is 0 to 1e-70
NODES, LENGTH, CHUNK = 40, 20.0, 128  # of the quadrature: twice as many nodes change 1e-12
MEAN, VARIANCE = -1.2065335745820, 1.6077810345810  # of the law with beta = 1


def tracy_widom_cdf(x: Values, beta: int = 1) -> Values:
    """`F_β(x)` for beta 1 (real matrices), 2 (complex) or 4 (quaternion), to 1e-12; about 1 ms per value.

    With `A_s` the integral operator of kernel `Ai(ξ + η + s)` on (0, ∞): `F₁(s) = det(1 - A_s)`, `F₂ = F₁ det(1 + A_s)`,
    `F₄(s/√2) = (F₁ + F₂/F₁) / 2`, by Gauss–Legendre quadrature. Ferrari & Spohn (2005); Bornemann (2010), whose table has the
    same units for beta 4 (mean -2.3069).

    >>> round(tracy_widom_cdf(0.9793), 4), round(tracy_widom_cdf(2.0234), 4)
    (0.95, 0.99)
    """
    if beta not in (1, 2, 4):
        raise UsageError(f"got beta={beta!r}; expected 1 (real matrices), 2 (complex) or 4 (quaternion)")

    def cdf(values: Array) -> Array:
        minus, plus = _log_determinants(values * 2**0.5 if beta == 4 else values)
        if beta == 4:
            return (np.exp(minus) + np.exp(plus)) / 2
        return np.exp(minus if beta == 1 else minus + plus)

    return elementwise(cdf, x)


def tracy_widom_sf(x: Values) -> Values:
    """`1 - F₁(x)`, which keeps its relative precision where F₁ rounds to 1: ten digits, from a table; 0.1 ms for a few values.

    >>> f"{tracy_widom_sf(12.0):.3g}"
    '1.98e-14'
    """
    return elementwise(lambda values: np.where(values > HIGHEST, _far(values), _tabulated(values)), x)


def exact_sf(x: Values) -> Values:
    """`1 - F₁(x)` from the determinant, which the table interpolates; about 1 ms per value."""
    return elementwise(lambda v: np.where(v > HIGHEST, _far(v), -np.expm1(_log_determinants(v)[0])), x)


def _far(x: Array) -> Array:
    """`1 - F₁(x)` above the table: half the integral of Ai from x on (the trace of `A_s`), to relative 1e-70."""
    nodes, weights = np.polynomial.laguerre.laggauss(16)
    start = np.clip(x, HIGHEST, 1e4)[..., None]  # beyond, it is 0 in float64
    at = start + nodes / np.sqrt(start)
    slower = 2 / 3 * (at**1.5 - start**1.5) - nodes
    return np.asarray(
        (weights * airye(at)[0] * np.exp(-slower) / np.sqrt(start)).sum(-1) / 2 * np.exp(-2 / 3 * start[..., 0] ** 1.5)
    )


def _tabulated(x: Array) -> Array:
    """The Chebyshev sum of every value's own piece; 1 below the table, NaN at NaN."""
    edges, coefficients = _table()
    inside = np.clip(x, edges[0], edges[-1])
    piece = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, len(edges) - 2)
    low, high = edges[piece], edges[piece + 1]
    place = (2 * inside - low - high) / (high - low)
    orders = np.arange(len(coefficients)).reshape(-1, *([1] * x.ndim))
    log_of_minus_log = (coefficients[:, piece] * np.cos(orders * np.arccos(np.clip(place, -1, 1)))).sum(0)
    return np.where(x < edges[0], 1.0, -np.expm1(-np.exp(log_of_minus_log)))


@cache
def _table() -> tuple[Array, Array]:
    """The pieces' ends, and their coefficients as columns of equal length."""
    longest = max(len(row) for row in COEFFICIENTS)
    return np.array(EDGES), np.array([row + (0.0,) * (longest - len(row)) for row in COEFFICIENTS]).T


def _log_determinants(x: Array) -> tuple[Array, Array]:
    """`log det(1 - A_s)` and `log det(1 + A_s)` at every s of `x`; NaN at NaN."""
    nodes, roots = _quadrature()
    upper = np.triu_indices(NODES)
    flat = x.reshape(-1)
    minus, plus = np.empty_like(flat), np.empty_like(flat)
    for start in range(0, len(flat), CHUNK):
        s = flat[start : start + CHUNK]
        inside = np.nan_to_num(np.clip(s, LOWEST, HIGHEST))
        kernel = np.empty((len(s), NODES, NODES))
        kernel[:, upper[0], upper[1]] = airy(nodes[upper[0]] + nodes[upper[1]] + inside[:, None])[0]
        kernel[:, upper[1], upper[0]] = kernel[:, upper[0], upper[1]]
        eigenvalues = np.linalg.eigvalsh(roots[:, None] * kernel * roots)
        inner = np.clip(eigenvalues, -1 + 1e-16, 1 - 1e-16)  # all lie strictly inside (-1, 1); rounding may leave it
        minus[start : start + CHUNK] = np.where(s < LOWEST, -np.inf, np.log1p(-inner).sum(1))
        plus[start : start + CHUNK] = np.where(s < LOWEST, -np.inf, np.log1p(inner).sum(1))
    unknown = np.isnan(flat)
    minus[unknown] = plus[unknown] = np.nan
    return minus.reshape(x.shape), plus.reshape(x.shape)


@cache
def _quadrature() -> tuple[Array, Array]:
    """Nodes on (0, LENGTH) and the square roots of their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (nodes + 1) * LENGTH / 2, np.sqrt(weights * LENGTH / 2)

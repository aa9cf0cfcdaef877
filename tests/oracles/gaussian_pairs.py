"""E[f(u) f(v)] of Gaussian pairs the slow way: conditional means on fine panels, and mpmath's own quadrature.

Written against neither road of the package: the second variable is integrated given the first, on panels that halve towards
every place where f or its conditional mean changes quickly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mpmath
import numpy as np

Function = Callable[[np.ndarray], np.ndarray]
REACH, NODES, HALVINGS = 9.5, 14, 30


def correlation(cov: float, q1: float, q2: float) -> tuple[float, float]:
    """ρ and √(1 − ρ²) of three doubles, from 60 digits."""
    with mpmath.workdps(60):
        a, b, c = mpmath.mpf(q1), mpmath.mpf(q2), mpmath.mpf(cov)
        rho = max(mpmath.mpf(-1), min(mpmath.mpf(1), c / mpmath.sqrt(a * b)))
        root = mpmath.sqrt(max(mpmath.mpf(0), 1 - rho**2))
        return float(rho), float(root)


def pair_mean(f: Function, cov: float, q1: float, q2: float, places: Sequence[float] = (0.0,)) -> float:
    """E[f(u) f(v)], (u, v) ~ N(0, [[q₁, cov], [cov, q₂]]), for f that changes quickly at `places` only."""
    rho, root = correlation(cov, q1, q2)
    s1, s2 = math.sqrt(q1), math.sqrt(q2)
    at = np.array(places)
    centres = np.concatenate([at / s1, at / (s2 * rho) if abs(rho) > 0.5 else at[:0]])
    z, weights = _line(centres)
    total = 0.0
    for part, weight in zip(np.array_split(z, 16), np.array_split(weights, 16)):
        mean = s2 * rho * part
        if root == 0:
            inner = f(mean)
        else:
            turned = (at[None, :] - mean[:, None]) / (s2 * root)
            y, inner_weights = _rows(turned)
            inner = (f(mean[:, None] + s2 * root * y) * inner_weights).sum(1)
        total += (f(s1 * part) * inner * weight).sum()
    return float(total)


def second_moment(f: Function, q: float, places: Sequence[float] = (0.0,)) -> float:
    return pair_mean(f, q, q, q, places)


def by_mpmath(f: Callable[[mpmath.mpf], mpmath.mpf], cov: float, q1: float, q2: float) -> float:
    """The same by mpmath's tanh–sinh rule, for f that changes quickly at zero only; seconds."""
    with mpmath.workdps(16):
        a, b = mpmath.sqrt(mpmath.mpf(q1)), mpmath.sqrt(mpmath.mpf(q2))
        rho = mpmath.mpf(cov) / (a * b)
        root = mpmath.sqrt(1 - rho**2)

        def outer(x: mpmath.mpf) -> mpmath.mpf:
            turn = max(mpmath.mpf(-9), min(mpmath.mpf(9), -rho * x / root))
            inner = mpmath.quad(lambda y: mpmath.npdf(y) * f(b * (rho * x + root * y)), [-9, turn, 9], maxdegree=5)
            return mpmath.npdf(x) * f(a * x) * inner

        return float(mpmath.quad(outer, [-9, 0, 9], maxdegree=5))


def _steps() -> np.ndarray:
    halves = 0.5 ** np.arange(1, HALVINGS + 1)
    return np.concatenate([-halves, np.zeros(1), halves[::-1]])


def _line(centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y, weights = _rows(centres[None, :])
    return y[0], weights[0]


def _rows(centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row panels of half a deviation, and panels that halve towards each of its centres."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    fixed = np.broadcast_to(np.arange(-REACH, REACH + 0.25, 0.5), (len(centres), int(4 * REACH) + 1))
    graded = (centres[:, :, None] + _steps()).reshape(len(centres), -1)
    edges = np.sort(np.clip(np.concatenate([fixed, graded], axis=1), -REACH, REACH), axis=1)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, np.diff(edges, axis=1) / 2
    y = (middle[:, :, None] + half[:, :, None] * x).reshape(len(centres), -1)
    density = np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)
    return y, (half[:, :, None] * w).reshape(len(centres), -1) * density

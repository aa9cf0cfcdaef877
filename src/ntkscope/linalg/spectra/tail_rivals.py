"""Laws that a tail may follow instead of a power law, fitted from 1 on, and Vuong's test between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from scipy.optimize import minimize
from scipy.special import erfc, erfcx
from scipy.stats import chi2, norm

Array: TypeAlias = np.ndarray
Rival: TypeAlias = Callable[[Array, float], Array]
NESTED = "truncated"
FLAT = 1e-6  # curvature of a log-normal that is a power law


@dataclass(frozen=True)
class Vuong:
    """`ratio`: the difference of log-likelihoods, power law minus rival, in standard errors; `p`: two-sided.

    A rival that contains the power law is never less likely; its ratio is the difference itself and p is Wilks's.
    """

    ratio: float
    p: float


def vuong(x: Array, alpha: float, rival: Rival) -> Vuong:
    """The power law of exponent `alpha` against a rival fitted to the same `x ≥ 1`. Vuong (1989)."""
    ours = math.log(alpha - 1) - alpha * np.log(x)
    differences = ours - rival(x, alpha)
    total = float(differences.sum())
    if rival is truncated:
        total = min(total, 0.0)
        return Vuong(total, float(chi2.sf(-2 * total, 1)))
    error = math.sqrt(len(x)) * float(differences.std())
    ratio = total / error if error > 0 else 0.0
    return Vuong(ratio, float(2 * norm.sf(abs(ratio))))


def exponential(x: Array, alpha: float) -> Array:
    """`λ exp(-λ (x - 1))`, λ by maximum likelihood."""
    rate = 1 / float((x - 1).mean())
    return math.log(rate) - rate * (x - 1)


def log_normal(x: Array, alpha: float) -> Array:
    """Log-normal from 1 on: the density of `L = log x` is `exp(-a L - b L²/2)` up to a constant, b ≥ 0, by maximum likelihood.

    b = 0 is the power law, so this rival never loses; the likelihood is concave in a and b.
    """
    unit = float(np.log(x).mean())
    logs = np.log(x) / unit
    mean, square = 1.0, float((logs**2).mean())

    def loss(parameters: Array) -> float:
        a, b = float(parameters[0]), math.exp(float(parameters[1]))
        return a * mean + b * square / 2 + _log_gauss(a, b)

    bounds = [(-1e3, 1e3), (math.log(FLAT) - 1, math.log(1e5))]
    found = [minimize(loss, (1.0, math.log(b)), method="L-BFGS-B", bounds=bounds) for b in (0.01, 1.0, 20.0)]
    best = min(found, key=lambda result: float(result.fun))
    a, b = float(best.x[0]), math.exp(float(best.x[1]))
    if b <= FLAT or float(best.fun) >= 1:  # the power law's own, in these units
        return math.log(alpha - 1) - alpha * np.log(x)
    return -np.log(x) - a * logs - b * logs**2 / 2 - _log_gauss(a, b) - math.log(unit)


def _log_gauss(a: float, b: float) -> float:
    """`log ∫₀^∞ exp(-a L - b L²/2) dL`."""
    z = a / math.sqrt(2 * b)
    inner = math.log(erfcx(z)) if z > -5 else z * z + math.log(erfc(z))
    return math.log(math.pi / (2 * b)) / 2 + inner


def truncated(x: Array, alpha: float) -> Array:
    """`x^(-a) exp(-λ x)` from 1 on, a and λ ≥ 0 by maximum likelihood; λ = 0 is the power law."""
    logs, mean, count = float(np.log(x).mean()), float(x.mean()), len(x)

    def loss(parameters: Array) -> float:
        exponent, rate = float(parameters[0]), math.exp(float(parameters[1]))
        return count * (exponent * logs + rate * mean + log_normaliser(exponent, rate))

    best, at = -float((math.log(alpha - 1) - alpha * np.log(x)).sum()), (alpha, -math.inf)
    for first in (0.01, 0.3, 1.0):  # cut-offs far beyond, within and before the mean
        found = minimize(
            loss,
            (alpha, math.log(first / mean)),
            method="L-BFGS-B",
            bounds=[(-20.0, 50.0), (math.log(1e-12), math.log(1e4))],
        )
        if float(found.fun) < best:
            best, at = float(found.fun), (float(found.x[0]), float(found.x[1]))
    exponent, rate = at[0], math.exp(at[1])
    if rate == 0:
        return math.log(alpha - 1) - alpha * np.log(x)
    return -exponent * np.log(x) - rate * x - log_normaliser(exponent, rate)


def log_normaliser(exponent: float, rate: float) -> float:
    """`log ∫₁^∞ x^(-a) e^(-λx) dx`, a generalised exponential integral: with x = e^y a smooth integrand, by Gauss–Legendre."""
    nodes, weights = _quadrature()
    peak = max(0.0, math.log(max((1 - exponent) / rate, 1.0)))
    top = (1 - exponent) * peak - rate * math.exp(peak)
    reach = peak + 1.0
    while (1 - exponent) * reach - rate * math.exp(min(reach, 700.0)) > top - 40 and reach < 700:
        reach *= 1.3
    total = 0.0
    for low, high in zip(*_panels(reach)):
        y = low + (high - low) * nodes
        total += (high - low) * float((weights * np.exp((1 - exponent) * y - rate * np.exp(y) - top)).sum())
    return top + math.log(total)


def _panels(reach: float) -> tuple[Array, Array]:
    ends = reach * np.linspace(0, 1, 9) ** 2
    return ends[:-1], ends[1:]


@cache
def _quadrature() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(40)
    return (nodes + 1) / 2, weights / 2


RIVALS: dict[str, Rival] = {"log-normal": log_normal, "exponential": exponential, NESTED: truncated}

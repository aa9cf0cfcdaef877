"""The formulas of the NTK review's section 2, computed another way: quadrature, Monte Carlo, the sum as it is printed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import Tensor

from ntkscope import infinite
from ntkscope.core import generator
from ntkscope.infinite import Activation, Dense, Erf, Gelu, Relu, serial
from ntkscope.infinite.layer import Nonlinearity

EXAMPLE = {1: 0.5513, 2: 0.8838, 3: 1.2156}  # the ledger's pair, norms 1 and 0.9
SHORT = 0.9
FUNCTIONS: dict[str, Callable[[bool], Nonlinearity]] = {
    "relu": lambda normalise: Relu(normalize=normalise),
    "erf": lambda normalise: Erf(normalize=normalise),
    "tanh": lambda normalise: Activation(torch.tanh, normalize=normalise),
    "gelu": lambda normalise: Gelu(normalize=normalise),
}


def arc_cosines(cosine: float) -> tuple[float, float]:
    """c_σ E[σσ] and c_σ E[σ̇σ̇] of ReLU for unit variances: ((sin θ + (π − θ) cos θ)/π, (π − θ)/π). Cho & Saul (2009).

    >>> arc_cosines(1.0)
    (1.0, 1.0)
    """
    cosine = min(1.0, max(-1.0, cosine))
    theta = float(np.arccos(cosine))
    slope = 1 - theta / np.pi
    return float((np.sin(theta) / np.pi) + slope * cosine), float(slope)


def printed_ntk(x: Float[Tensor, " d"], z: Float[Tensor, " d"], hidden: int) -> float:
    """Θ as the review prints it: Σ_{h=1}^{L+1} Σ^{(h−1)} Π_{h′=h}^{L+1} Σ̇^{(h′)}, Σ̇^{(L+1)} = 1; ReLU.

    >>> one = torch.tensor([1.0, 0.0])
    >>> printed_ntk(one, one, 2)
    3.0
    """
    x, z = x.double(), z.double()
    norm = float(x @ x * (z @ z)) ** 0.5  # of a vector with itself exactly what the product is: the angle is 0 then
    sigma = [float(x @ z)]
    slopes = []
    for _ in range(hidden):  # both variances stay constant, since c_σ is 2
        values, slope = arc_cosines(sigma[-1] / norm)
        sigma.append(norm * values)
        slopes.append(slope)
    slopes.append(1.0)
    return float(sum(sigma[h - 1] * np.prod(slopes[h - 1 :]) for h in range(1, hidden + 2)))


def example_cosine() -> float:
    """The cosine between the ledger's two inputs, from its kernel with one hidden layer.

    >>> round(example_cosine(), 3)
    0.261
    """
    return float(brentq(lambda c: SHORT * (arc_cosines(c)[0] + c * arc_cosines(c)[1]) - EXAMPLE[1], -1, 1))


def normalisers() -> dict[str, Any]:
    """c_σ of several functions: from `ns.infinite`, and by adaptive quadrature over both half-lines."""
    found = {}
    for name, made in FUNCTIONS.items():
        one = made(False)

        def squared(z: float, one: Nonlinearity = one) -> float:
            value = float(one.function(torch.tensor(z, dtype=torch.float64)))
            return value**2 * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

        mean = sum(quad(squared, *half, epsabs=1e-13, epsrel=1e-13)[0] for half in ((-14, 0), (0, 14)))
        found[name] = {"c": one.normaliser(), "quadrature": 1 / mean}
    return found


def recursion(samples: int, depth: int, seed: int) -> dict[str, Any]:
    """Σ and Σ̇ of every layer against means over draws from the previous layer's covariance.

    Σ̇^{(h)} = (Θ^{(h)} − Σ^{(h)}) / Θ^{(h−1)} is what the kernels imply of it.
    """
    x = torch.tensor([[1.0, 0.0], [0.9 * 0.3, 0.9 * math.sqrt(1 - 0.3**2)]], dtype=torch.float64)
    found: dict[str, Any] = {}
    for name, made in FUNCTIONS.items():
        one = made(True)
        layers = [infinite.kernels(serial(Dense(2**0.5), *[one, Dense()] * h), x) for h in range(depth + 1)]
        scale = one.normaliser()
        for h in range(1, depth + 1):
            before, now = layers[h - 1], layers[h]
            root = torch.linalg.cholesky(before.nngp.dense())
            z = torch.randn(samples, 2, generator=generator(seed, "recursion", name, h), dtype=torch.float64) @ root.T
            z.requires_grad_(True)
            values = one.function(z)
            (slopes,) = torch.autograd.grad(values.sum(), z)
            slope = (now.ntk.dense() - now.nngp.dense()) / before.ntk.dense()
            for what, drawn, expected in (
                ("sigma", scale * values.detach().prod(1), float(now.nngp.dense()[0, 1])),
                ("slope", scale * slopes.prod(1), float(slope[0, 1])),
            ):
                mean, sem = float(drawn.mean()), float(drawn.std()) / math.sqrt(samples)
                off = {"closed form": expected, "mean": mean, "standard errors": abs(mean - expected) / sem}
                found[f"{name}/{h}/{what}"] = {**off, "relative": abs(mean / expected - 1)}
    return found

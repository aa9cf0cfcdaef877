"""Functions on all corners of a small Boolean cube: parities, their eigenvalues, and each degree's share of a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ntkscope.core.random import derive_seed
from ntkscope.infinite import Dense, finite, kernels, sample, serial
from ntkscope.infinite.layer import Layer, Nonlinearity

KINDS = {"CK": "nngp", "NTK": "ntk"}


def fully_connected(function: Nonlinearity, hidden: int, weight: float | int, bias: float | int) -> Layer:
    """`hidden` layers, every affine layer with variances `weight` and `bias` of its weights (times fan-in) and biases."""
    affine = Dense(math.sqrt(weight), math.sqrt(bias))
    return serial(*[affine, function] * hidden, affine)


def corners(d: int) -> Float[Tensor, "n d"]:
    """All points of {−1, 1}^d, one per row.

    >>> corners(1).tolist()
    [[1.0], [-1.0]]
    """
    bits = torch.arange(2**d)[:, None] >> torch.arange(d) & 1
    return (1 - 2 * bits).double()


def parities(d: int) -> tuple[Float[Tensor, "n n"], Int64[Tensor, " n"]]:
    """The parity of every subset as a column over all corners, and the subset's size.

    >>> table, size = parities(3)
    >>> bool((table.T @ table == 8 * torch.eye(8)).all()), size.tolist()
    (True, [0, 1, 1, 2, 1, 2, 2, 3])
    """
    subset = torch.arange(2**d)[:, None] >> torch.arange(d) & 1
    x = corners(d)
    columns = [x[:, chosen.bool()].prod(1) for chosen in subset]
    return torch.stack(columns, 1), subset.sum(1)


def by_parity(K: Float[Tensor, "n n"], d: int) -> dict[str, Any]:
    """How well parities are eigenvectors of K / 2^d, how much their eigenvalues differ within a degree, their multiplicities.

    `residual` and `spread` are over the largest eigenvalue.
    """
    table, size = parities(d)
    operator = K / 2**d
    moved = operator @ table
    mu = (table * moved).sum(0) / 2**d
    top = float(mu.max())
    spread = [float(mu[size == k].max() - mu[size == k].min()) for k in range(d + 1)]
    mean = [float(mu[size == k].mean()) for k in range(d + 1)]
    found = torch.linalg.eigvalsh(operator)
    multiplicity = [int(((found - value).abs() <= 1e-10 * top).sum()) for value in mean]
    return {
        "residual": float((moved - table * mu).abs().max()) / top,
        "spread": max(spread) / top,
        "eigenvalues": mean,
        "multiplicity": multiplicity,
    }


def covariance_errors(drawn: Float[Tensor, "count n"], K: Float[Tensor, "n n"]) -> float:
    """The largest difference between the draws' second moments and K, in standard errors √((KᵢᵢKⱼⱼ + Kᵢⱼ²) / count)."""
    moments = drawn.T @ drawn / len(drawn)
    diagonal = K.diagonal()
    error = ((torch.outer(diagonal, diagonal) + K**2) / len(drawn)).sqrt()
    return float(((moments - K).abs() / error).max())


def ratio(part: Float[Tensor, " n"], whole: Float[Tensor, " n"]) -> dict[str, float]:
    """Σ part / Σ whole over independent draws with its standard error (by linearisation).

    >>> ratio(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    {'share': 0.5, 'sem': 0.0}
    """
    share = float(part.sum() / whole.sum())
    error = float((part - share * whole).std() / whole.mean()) / math.sqrt(len(part))
    return {"share": share, "sem": error}


def degree_shares(functions: Float[Tensor, "count n"], d: int) -> Float[Tensor, "count k"]:
    """The mean square of every degree's part of every function: the squares of its parity coefficients, added by degree."""
    table, size = parities(d)
    squares = (functions.double() @ table / 2**d).square()
    return torch.stack([squares[:, size == k].sum(1) for k in range(d + 1)], 1)


def network_shares(net: Layer, d: int, width: int, seeds: int, outputs: int, seed: int) -> dict[str, Any]:
    """What each degree carries of random networks of finite width; one network's outputs share its hidden layers."""
    parts = []
    for s in range(seeds):
        model = finite(net, (d,), width, outputs=outputs, seed=derive_seed(seed, "cube", s))
        with torch.no_grad():
            parts.append(degree_shares(model(corners(d).float()).T, d).mean(0))
    table = torch.stack(parts)
    found = [ratio(table[:, k], table.sum(1)) for k in range(d + 1)]
    return {"share": [one["share"] for one in found], "sem": [one["sem"] for one in found]}


def truncation(K: Float[Tensor, "n n"], keep: Sequence[int], draws: int, seed: int) -> dict[str, Any]:
    """What dropping all but the largest eigenvalues changes of samples, beside the share of variance they have."""
    values = torch.linalg.eigvalsh(K).flip(0)
    whole = sample(K, draws, seed=seed)
    found = {}
    for k in keep:
        change = (whole - sample(K, draws, seed=seed, keep=k)).square().sum(1)
        expected = float(values[k:].clamp(min=0).sum() / values.clamp(min=0).sum())
        found[str(k)] = {**ratio(change, whole.square().sum(1)), "expected": expected}
    return found


def low_degrees(net: Layer, d: int, degrees: int) -> dict[str, Float[Tensor, " k"]]:
    """Fractional variances of the degrees 0 … `degrees` over {−1, 1}^d of both kernels, in double precision.

    C(d, k) μ_k = 2^{−d} Σ_r C(d, r) K_k(r) Φ(1 − 2r/d) with Krawtchouk's polynomials K_k, whose mean square is C(d, k): so
    rounding is about 1e-16 √C(d, k) of K(x, x), 1e-11 for k = 6 and d = 128. For more degrees there is `boolean_cube`. O(d).

    >>> from ntkscope.infinite import Erf
    >>> [round(abs(v), 4) for v in low_degrees(fully_connected(Erf(), 1, 1.0, 0.0), 3, 3)["nngp"].tolist()]
    [0.0, 0.9803, 0.0, 0.0197]
    """
    flipped = torch.ones(d + 1, d, dtype=torch.float64).tril_(-1).neg_()
    x = torch.where(flipped < 0, -1.0, 1.0).double()  # row r has r coordinates −1
    both = kernels(net, x[:1], x)
    weights = torch.tensor([math.comb(d, r) / 2**d for r in range(d + 1)], dtype=torch.float64)
    krawtchouk = torch.tensor(
        [
            [sum((-1) ** j * math.comb(r, j) * math.comb(d - r, k - j) for j in range(k + 1)) for r in range(d + 1)]
            for k in range(degrees + 1)
        ],
        dtype=torch.float64,
    )
    found = {}
    for kind, gram in (("nngp", both.nngp), ("ntk", both.ntk)):
        phi = gram.dense()[0]
        found[kind] = krawtchouk @ (weights * phi) / phi[0]
    return found

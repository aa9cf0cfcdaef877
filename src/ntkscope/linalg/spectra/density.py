"""The density of a kernel's eigenvalues: exact for small ones, by stochastic Lanczos quadrature for large ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import UsageError, generator
from ntkscope.core.checked import Count, Positive, Several
from ntkscope.linalg.grams.dense import as_gram
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.spectra.lanczos import lanczos, tridiagonal

EXACT_BELOW = 2000


@dataclass(frozen=True, eq=False)
class SpectralDensity:
    """A density that integrates to 1 over the real line, on a grid: every eigenvalue smoothed with a Gaussian of deviation
    `width`. `standard_error`: of the density at each grid point, from the spread over probes; 0 when exact."""

    grid: Float[Tensor, " g"]
    density: Float[Tensor, " g"]
    standard_error: Float[Tensor, " g"]
    width: float
    method: str


def quadrature(
    K: Gram | Tensor | np.ndarray, *, probes: Several = 16, steps: Count = 64, seed: int = 0
) -> tuple[Float[Tensor, "k s"], Float[Tensor, "k s"]]:
    """Nodes θ and weights w with `Σ_j w_kj f(θ_kj) ≈ v_kᵀ f(K) v_k` for random unit `v_k`: one row per probe.

    The mean over probes estimates `tr f(K) / n`. `steps` products `K @ V` of `probes` columns; exact for polynomials of
    degree below `2 steps`. Golub & Meurant (1994); Ubaru, Chen & Saad (2017).
    """
    gram = as_gram(K, symmetric=True)
    n = gram.shape[0]
    if n < 1:
        raise UsageError("got an empty matrix; expected at least one row")
    start = torch.randn(n, probes, dtype=torch.float64, generator=generator(seed, "quadrature")).to(gram.device)
    _, alpha, beta, _ = lanczos(gram, start, min(steps, n))
    nodes, vectors = torch.linalg.eigh(tridiagonal(alpha, beta))
    return nodes, vectors[:, 0, :].square()


def stochastic_trace(
    K: Gram | Tensor | np.ndarray,
    function: Callable[[Tensor], Tensor],
    *,
    probes: Several = 16,
    steps: Count = 64,
    seed: int = 0,
) -> tuple[float, float]:
    """`tr f(K)` and its standard error over probes, by stochastic Lanczos quadrature; `steps` products `K @ V`.

    Examples:
        >>> trace, error = stochastic_trace(3 * torch.eye(10), torch.log)
        >>> round(trace, 6) == round(10 * float(np.log(3)), 6)
        True
    """
    nodes, weights = quadrature(K, probes=probes, steps=steps, seed=seed)
    values = function(nodes)
    samples = K.shape[0] * torch.where(weights > 0, weights * values, 0.0).sum(1)
    return float(samples.mean()), float(samples.std() / probes**0.5)


def spectral_density(
    K: Gram | Tensor | np.ndarray,
    *,
    points: Several = 200,
    width: Positive | None = None,
    grid: Float[Tensor, " g"] | None = None,
    method: Literal["exact", "quadrature"] | None = None,
    probes: Several = 16,
    steps: Count = 64,
    seed: int = 0,
) -> SpectralDensity:
    """`(1/n) Σ_i N(t; λ_i, width²)` on a grid of t: the histogram of eigenvalues, smoothed.

    `exact` decomposes (the default below n = 2,000), O(n³); `quadrature` estimates it from `steps` products with
    `probes` vectors and reports its standard error. The error covers the draw of the probes; that of the quadrature itself
    is negligible once `width` is above the spectrum's span / steps. Width: 1/100 of the span, unless given.

    Examples:
        >>> found = spectral_density(torch.eye(4), grid=torch.tensor([1.0]), width=0.5)
        >>> round(float(found.density), 4)  # the height of one Gaussian, 1 / (0.5 √(2π))
        0.7979
    """
    gram = as_gram(K, symmetric=True)
    if gram.shape[0] < 1:
        raise UsageError("got an empty matrix; expected at least one row")
    method = method or ("exact" if gram.shape[0] < EXACT_BELOW else "quadrature")
    if method == "exact":
        nodes = gram.eigvalsh()[None]
        weights = torch.full_like(nodes, 1 / nodes.shape[1])
    else:
        nodes, weights = quadrature(gram, probes=probes, steps=steps, seed=seed)
    present = nodes[weights > torch.finfo(torch.float64).eps]
    low, high = float(present.min()), float(present.max())
    if width is None:
        width = max((high - low) / 100, 1e-3 * max(abs(high), abs(low)), torch.finfo(torch.float32).tiny)
    if grid is None:
        grid = torch.linspace(low - 3 * width, high + 3 * width, points, dtype=torch.float64, device=nodes.device)
    grid = grid.to(nodes)
    samples = torch.stack([_smoothed(grid, theta, weight, width) for theta, weight in zip(nodes, weights)])
    error = samples.std(0) / len(samples) ** 0.5 if method == "quadrature" else torch.zeros_like(grid)
    return SpectralDensity(grid, samples.mean(0), error, width, method)


def _smoothed(grid: Tensor, nodes: Tensor, weights: Tensor, width: float) -> Tensor:
    """`Σ_j w_j N(t; θ_j, width²)` at each t of the grid."""
    bumps = torch.exp(-0.5 * ((grid[:, None] - nodes) / width).square()) / (width * (2 * torch.pi) ** 0.5)
    return bumps @ weights

"""The effective rank of a kernel too large to decompose, by stochastic Lanczos quadrature, with its error bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.linalg.block_lanczos import block_eigenpairs
from ntkscope.linalg.dense import as_gram
from ntkscope.linalg.density import nodes_and_weights
from ntkscope.linalg.gram import Gram

TRUSTED = 1e-2  # residual over value of an eigenpair that is taken out before the rest is sampled


@dataclass(frozen=True)
class RankEstimate:
    """An effective rank, and what is known of its error."""

    value: float
    standard_error: float
    """From the spread over probes."""
    deflated: int
    """Leading eigenpairs that were computed and not sampled."""
    passes: int
    """Products `K @ V`, each a pass over the matrix."""

    def __float__(self) -> float:
        return self.value


def estimate_effective_rank(
    K: Gram | Tensor | np.ndarray,
    of: Literal["kernel", "features"] = "kernel",
    *,
    probes: int = 16,
    steps: int = 48,
    deflate: int = 32,
    seed: int = 0,
) -> RankEstimate:
    """`exp(log A - B/A)` with `A = Σ σ`, `B = Σ σ log σ`: `effective_rank` from `steps` and about ten more passes.

    The `deflate` largest eigenvalues, which decide most of both sums, come from block Lanczos; the rest from quadrature on
    what is orthogonal to them. The trace is known from the diagonal, so the sums are corrected by how far the same probes
    miss it. The error bar covers the draw of the probes; that of the quadrature falls with the square of `steps` and
    matters for `of="features"`, whose roots are steep at zero. Ubaru, Chen & Saad (2017); Meyer et al. (2021).

    >>> found = estimate_effective_rank(torch.diag(torch.tensor([4.0] * 8 + [0.0] * 72)))
    >>> round(found.value, 3)
    8.0
    """
    gram = as_gram(K, symmetric=True)
    n = gram.shape[0]
    if n < 2 or probes < 4 or steps < 1 or deflate < 0:
        raise UsageError(
            f"{gram!r}, probes={probes}, steps={steps}, deflate={deflate} came; expected at least 2 rows, 4 probes (fewer"
            " have no error bar), 1 step"
        )
    values, vectors, passes = _leading(gram, min(deflate, n // 4), seed)
    rest = n - len(values)
    start = torch.randn(n, probes, dtype=torch.float64, generator=generator(seed, "rank-estimate")).to(gram.device)
    outside = _Outside(gram, vectors)
    nodes, weights = nodes_and_weights(outside, outside.project(start), min(steps, rest))
    trace = gram.diagonal().detach().to(torch.float64).sum()

    def sums(f: Any) -> tuple[Tensor, Tensor]:
        """The deflated part of `tr f(K)`, and an estimate of the rest from each probe."""
        return f(values).sum(), rest * torch.where(weights > 0, weights * f(nodes), 0.0).sum(1)

    a, b = (sums(f) for f in _summands(of))
    known = trace - values.sum()
    missed = sums(lambda x: x)[1] - known
    A, B = (exact + _corrected(samples, missed).mean() for exact, samples in (a, b))
    if not (bool(torch.isfinite(A + B)) and float(A) > 0):
        raise NumericalError("the effective rank of a matrix whose singular values are all zero (or none) is undefined")
    rank = float(torch.exp(A.log() - B / A))
    slope = _corrected(rank * ((1 / A + B / A**2) * a[1] - b[1] / A), missed)
    error = float(slope.std() * ((probes - 1) / (probes - 2)) ** 0.5 / probes**0.5)
    return RankEstimate(rank, error, len(values), passes + min(steps, rest))


def _leading(gram: Gram, k: int, seed: int) -> tuple[Tensor, Tensor, int]:
    """Leading eigenpairs that are good enough to be taken out, and the passes they cost."""
    if k < 1:
        empty = torch.zeros(gram.shape[0], 0, dtype=torch.float64, device=gram.device)
        return empty[0], empty, 0
    found = block_eigenpairs(gram, k, end="magnitude", tolerance=1e-5, max_passes=20, seed=seed)
    good = found.residuals <= TRUSTED * found.values.abs()
    return found.values[good], found.vectors[:, good], found.passes


def _summands(of: str) -> tuple[Any, Any]:
    def sigma(x: Tensor) -> Tensor:
        return x.clamp_min(0).sqrt() if of == "features" else x.abs()

    return sigma, lambda x: torch.special.xlogy(sigma(x), sigma(x))


def _corrected(samples: Tensor, missed: Tensor) -> Tensor:
    """Samples minus what their dependence on the missed trace explains: a control variate with a known mean of 0."""
    spread = (missed - missed.mean()).square().sum()
    if not float(spread) > 0:
        return samples
    slope = ((missed - missed.mean()) * (samples - samples.mean())).sum() / spread
    return samples - slope * missed


class _Outside:
    """`P K P` with `P = I - U Uᵀ`."""

    def __init__(self, gram: Gram, vectors: Tensor) -> None:
        self._gram, self._vectors = gram, vectors
        self.shape, self.device = gram.shape, gram.device

    def project(self, v: Tensor) -> Tensor:
        for _ in range(2):
            v = v - self._vectors @ (self._vectors.T @ v)
        return v

    def __matmul__(self, v: Tensor) -> Tensor:
        return self.project(self._gram @ self.project(v))

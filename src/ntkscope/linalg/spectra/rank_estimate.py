"""The effective rank of a kernel too large to decompose, by stochastic Lanczos quadrature, with its error bar."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from scipy.stats import norm
from scipy.stats import t as student
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.core.checked import Count, CountOrZero, within
from ntkscope.linalg.grams.dense import as_gram
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.spectra.block_lanczos import block_eigenpairs
from ntkscope.linalg.spectra.lanczos import lanczos, tridiagonal
from ntkscope.linalg.spectra.missed import Outside

TRUSTED = 1e-2  # residual over value of an eigenpair that is taken out before the rest is sampled


@dataclass(frozen=True)
class RankEstimate:
    """An effective rank, and what is known about its error."""

    value: float
    standard_error: float
    """Of three parts: the spread over probes (the larger of the delta method's and the jackknife's, widened as Student's t
    asks for half as many degrees of freedom: sums over so few are skewed); the distance between the two quadrature rules that
    enclose each probe's sum; and half of the correction by the known trace times its relative size, since that relation is
    not a line. Three of them cover the exact rank about as often as three of a normal error."""
    deflated: int
    """Leading eigenpairs that were computed rather than sampled."""
    passes: int
    """Products `K @ V`, each a pass over the matrix."""

    def __float__(self) -> float:
        return self.value


def estimate_effective_rank(
    K: Gram | Tensor | np.ndarray,
    of: Literal["kernel", "features"] = "kernel",
    *,
    probes: Annotated[int, within(low=4)] = 16,  # fewer have no error bar
    steps: Count = 48,
    deflate: CountOrZero = 32,
    seed: int = 0,
) -> RankEstimate:
    """`exp(log A - B/A)` with `A = Σ σ`, `B = Σ σ log σ`: `effective_rank` from `steps` and about ten more passes.

    The `deflate` largest eigenvalues, which decide most of both sums, come from block Lanczos; the rest from quadrature on
    what is orthogonal to them. The trace is known from the diagonal, so the sums are corrected by how far the same probes
    miss it. The error bar covers the draw of the probes and the quadrature, which matters for `of="features"`, whose roots
    are steep at zero: derivatives of `√x`, `√x log x` and `x log x` do not change sign below 1, so Gauss's rule and Radau's
    with a node at 0 lie on either side of each sum. Ubaru, Chen & Saad (2017); Meyer et al. (2021); Golub & Meurant (1994).

    Examples:
        >>> found = estimate_effective_rank(torch.diag(torch.tensor([4.0] * 8 + [0.0] * 72)))
        >>> round(found.value, 3)
        8.0
    """
    gram = as_gram(K, symmetric=True)
    n = gram.shape[0]
    if n < 2:
        raise UsageError(f"got {gram!r}; expected at least 2 rows")
    values, vectors, passes = _leading(gram, min(deflate, n // 4), seed)
    rest = n - len(values)
    start = torch.randn(n, probes, dtype=torch.float64, generator=generator(seed, "rank-estimate")).to(gram.device)
    outside = Outside(gram, vectors)
    rules = _rules(outside, outside.project(start), min(steps, rest))
    trace = gram.diagonal().detach().to(torch.float64).sum()
    unit = max([float(nodes.abs().max()) for nodes, _ in rules] + values.abs().tolist())
    if not unit > 0:
        raise NumericalError("the effective rank of a matrix whose singular values are all zero (or none) is undefined")
    values = values / unit  # all at most 1, where the two rules enclose what they estimate

    def sums(f: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The deflated part of `tr f(K)`, an estimate of the rest from each probe, and the possible error of the quadrature."""
        low, high = (rest * torch.where(w > 0, w * f(x / unit), 0.0).sum(1) for x, w in rules)
        return f(values).sum(), (low + high) / 2, (high - low).abs().mean() / 2

    a, b = (sums(f) for f in _summands(of))
    known = trace / unit - values.sum()
    missed = sums(lambda x: x)[1] - known

    def combined(kept: Tensor) -> tuple[Tensor, Tensor]:
        A, B = (exact + _corrected(samples[kept], missed[kept]).mean() for exact, samples, _ in (a, b))
        return A, B

    everyone = torch.arange(probes, device=missed.device)
    A, B = combined(everyone)
    if not (bool(torch.isfinite(A + B)) and float(A) > 0):
        raise NumericalError("the effective rank of a matrix whose singular values are all zero (or none) is undefined")
    rank = float(_rank(A, B))
    raw = rank * ((1 / A + B / A**2) * a[1] - b[1] / A)
    slope = _corrected(raw, missed)
    spread = float(slope.std() * ((probes - 1) / (probes - 2)) ** 0.5 / probes**0.5)
    drawn = max(spread, _jackknife(torch.stack([_rank(*combined(everyone[everyone != i])) for i in range(probes)])))
    drawn *= float(student.isf(norm.sf(3), (probes - 2) / 2)) / 3  # so that three cover what three of a normal one do
    rules_apart = float(rank * ((1 / A + B / A**2).abs() * a[2] + b[2] / A))
    far = float(missed.mean() / known) if float(known) > 0 else 0.0  # by this the trace was missed: a line bends
    bent = 0.5 * abs(far) * abs(float(raw.mean() - slope.mean()))
    error = math.hypot(drawn, rules_apart, bent)
    return RankEstimate(rank, error, len(values), passes + min(steps, rest))


def _rules(K: Any, start: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Nodes and weights, one row per probe, of Gauss's quadrature and Gauss-Radau's with a node at 0, from one Lanczos run."""
    _, alpha, beta, _ = lanczos(K, start, steps)
    inner = tridiagonal(alpha, beta)
    nodes, vectors = torch.linalg.eigh(inner)
    floor = -steps * torch.finfo(torch.float64).eps * float(nodes.abs().max()) + nodes.min().clamp_max(0)
    last = vectors[:, -1, :]
    extra = floor + (beta[:, -1].square()[:, None] * last.square() / (nodes - floor).clamp_min(1e-300)).sum(1)
    extra = torch.where(beta[:, -1] > 0, extra, 0.0)
    longer = torch.nn.functional.pad(inner, (0, 1, 0, 1))
    longer[:, -1, -1] = extra
    longer[:, -1, -2] = longer[:, -2, -1] = beta[:, -1]
    radau, sides = torch.linalg.eigh(longer)
    return [(nodes, vectors[:, 0, :].square()), (radau, sides[:, 0, :].square())]


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


def _rank(A: Tensor, B: Tensor) -> Tensor:
    return torch.exp(A.log() - B / A)


def _jackknife(left_out: Tensor) -> float:
    """The standard error from estimates without each probe: sees a probe that the control variate's slope hangs on."""
    n = len(left_out)
    return float(((n - 1) / n * (left_out - left_out.mean()).square().sum()).sqrt())


def _corrected(samples: Tensor, missed: Tensor) -> Tensor:
    """Samples minus what their dependence on the missed trace explains: a control variate with a known mean of 0."""
    spread = (missed - missed.mean()).square().sum()
    if not float(spread) > 0:
        return samples
    slope = ((missed - missed.mean()) * (samples - samples.mean())).sum() / spread
    return samples - slope * missed

"""Normalised traces of words in A, B and a free R, and the moments of R = Wᵀ diag(a²) W.

`tr[M] = (1/d) Σ_i M_ii`; Ā is A - tr[A]. Beaglehole, Mitliagkas & Agarwala (2024), appendix E, with its errata: the last
term of Eq. 28, printed `tr[Ā]² tr[B²] tr[R²]²` (zero, since tr[Ā] = 0), is `tr[B]² tr[Ā²] tr[R²]²`, as its own Eq. 27 says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import generator

Square = Float64[Tensor, "d d"]


@dataclass(frozen=True)
class Traces:
    """`tr(PQ)`, `tr(P²)` and `tr(Q²)` of P = ẆᵀẆ and Q = ẆᵀKẆ, in any common unit."""

    numerator: float
    first: float
    second: float

    @property
    def correlation(self) -> float:
        """`tr(PQ) / √(tr(P²) tr(Q²))`; NaN where a denominator is not positive, as in the published Eq. 28."""
        if not (self.first > 0 and self.second > 0):
            return math.nan
        return self.numerator / math.sqrt(self.first) / math.sqrt(self.second)


@dataclass(frozen=True)
class DataTraces:
    """What Eqs. 20, 22 and 28 take from the data: traces of A and B and of words in their centred versions."""

    a: float
    b: float
    ab: float
    aa: float
    bb: float
    aab: float
    abb: float
    abab: float

    @classmethod
    def of(cls, A: Square, B: Square) -> DataTraces:
        """One product of d × d matrices."""
        d = len(A)
        a, b = float(A.trace()) / d, float(B.trace()) / d
        eye = torch.eye(d, dtype=A.dtype, device=A.device)
        centred_a, centred_b = A - a * eye, B - b * eye
        product = centred_a @ centred_b

        def tr(left: Square, right: Square) -> float:
            return float((left * right.T).sum()) / d

        return cls(
            a,
            b,
            float(product.trace()) / d,
            tr(centred_a, centred_a),
            tr(centred_b, centred_b),
            tr(centred_a, product),
            tr(product, centred_b),
            tr(product, product),
        )


def word_traces(A: Square, B: Square, R: Square) -> Traces:
    """tr(ARARBR), tr(ARAR) and tr(ARBRARBR) themselves; three products of d × d matrices."""
    d = len(A)
    ar, br = A @ R, B @ R
    arbr = ar @ br

    def tr(left: Square, right: Square) -> float:
        return float((left * right.T).sum()) / d

    return Traces(tr(ar, arbr), tr(ar, ar), tr(arbr, arbr))


def numerator(data: DataTraces, r: Sequence[float]) -> float:
    """tr(ARARBR), Eq. 20."""
    r1, r2, r3 = r[:3]
    return data.a**2 * data.b * r3 + 2 * data.a * r1 * r2 * data.ab + data.b * r1 * r2 * data.aa + r1**3 * data.aab


def first_denominator(data: DataTraces, r: Sequence[float]) -> float:
    """tr(ARAR), Eq. 22: `tr[A²] tr[R]² + tr[A]² tr[R²] - tr[A]² tr[R]²`, here with tr[A²] = tr[Ā²] + tr[A]²."""
    return data.aa * r[0] ** 2 + data.a**2 * r[1]


def second_denominator(data: DataTraces, r: Sequence[float], *, printed: bool = False) -> float:
    """tr(ARBRARBR), Eq. 28 corrected; `printed` leaves out its last term, which is zero as published."""
    r1, r2, r3, r4 = r[:4]
    found = (
        r1**4 * data.abab
        + 2 * r1**2 * (r2 - r1**2) * data.ab**2
        + 2 * r1**2 * r2 * (data.b * data.aab + data.a * data.abb)
        + 4 * data.a * data.b * r3 * r1 * data.ab
        + data.a**2 * data.b**2 * r4
        + data.a**2 * data.bb * r2**2
    )
    return found if printed else found + data.b**2 * data.aa * r2**2


def predicted_traces(data: DataTraces, r: Sequence[float], *, printed: bool = False) -> Traces:
    return Traces(numerator(data, r), first_denominator(data, r), second_denominator(data, r, printed=printed))


def free_cumulants(ratio: float, order: int = 4) -> tuple[float, ...]:
    """Free cumulants of R for d/k → ratio: `κ_p = ratio^(p-1) (2p-1)!!`, a free compound Poisson law with jumps `ratio · a²`.

    >>> free_cumulants(1.0)
    (1.0, 3.0, 15.0, 105.0)
    """
    return tuple(ratio ** (p - 1) * math.prod(range(1, 2 * p, 2)) for p in range(1, order + 1))


def moments_of_cumulants(cumulants: Sequence[float]) -> tuple[float, ...]:
    """`m_n = Σ_s κ_s Σ_{i₁+…+i_s = n-s} m_{i₁} ⋯ m_{i_s}` (moments from free cumulants).

    >>> moments_of_cumulants((1.0, 3.0, 15.0, 105.0))
    (1.0, 4.0, 25.0, 202.0)
    """
    moments = [1.0]
    for n in range(1, len(cumulants) + 1):
        powers = [1.0] + [0.0] * n  # coefficients of the s-th power of Σ m_i zⁱ, up to n
        total = 0.0
        for s in range(1, n + 1):
            powers = [
                sum(powers[j] * (moments[i - j] if i - j < len(moments) else 0.0) for j in range(i + 1))
                for i in range(n + 1)
            ]
            total += cumulants[s - 1] * powers[n - s]
        moments.append(total)
    return tuple(moments[1:])


def free_moments(dimension: int, width: int) -> tuple[float, ...]:
    """tr[R^p], p = 1 … 4, for large d and k at this ratio, a ~ N(0, 1) and W ~ N(0, 1/k).

    >>> free_moments(64, 64)
    (1.0, 4.0, 25.0, 202.0)
    """
    return moments_of_cumulants(free_cumulants(dimension / width))


def trace_powers(W: Float64[Tensor, "k d"], a: Float64[Tensor, " k"]) -> Float64[Tensor, " 4"]:
    """tr[R^p], p = 1 … 4, of one draw, from the smaller of R and its k × k companion; O(kd min(k, d))."""
    scaled = a[:, None] * W
    gram = scaled @ scaled.T if len(scaled) < scaled.shape[1] else scaled.T @ scaled
    square = gram @ gram
    sums = [gram.trace(), (gram * gram).sum(), (gram * square).sum(), (square * square).sum()]
    return torch.stack(sums) / W.shape[1]


def draw_network(
    dimension: int, width: int, seed: int, device: torch.device | str = "cpu"
) -> tuple[Float64[Tensor, "k d"], Float64[Tensor, " k"]]:
    """W ~ N(0, 1/k) and a ~ N(0, 1) in float64, the same on every device."""
    random = generator(seed, "quadratic network")
    W = torch.randn(width, dimension, generator=random, dtype=torch.float64) / math.sqrt(width)
    return W.to(device), torch.randn(width, generator=random, dtype=torch.float64).to(device)


def drawn_moments(dimension: int, width: int, *, draws: int, seed: int = 0) -> tuple[list[float], list[float]]:
    """tr[R^p], p = 1 … 4, averaged over networks of seeds `seed`, `seed` + 1, …, as appendix H does, and standard errors."""
    found = torch.stack([trace_powers(*draw_network(dimension, width, seed + i)) for i in range(draws)])
    return found.mean(0).tolist(), (found.std(0, correction=1) / math.sqrt(draws)).tolist()

"""Alignment-reversing set: inputs whose second moment undoes the correlation of feature matrix and gradient product."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Part, Split, UsageError, generator
from ntkscope.core.arguments import Real, as_dtype
from ntkscope.core.checked import Count, NonNegative, Positive, Several, within
from ntkscope.data.registry import DATASETS


def _spiked(count: int, dimension: int, ridge: Real, random: torch.Generator) -> Float[Tensor, "n d"]:
    """Rows ~ N(0, 1 1ᵀ + ridge · I)."""
    shared = torch.randn(count, 1, generator=random, dtype=torch.float64)
    return shared + sqrt(ridge) * torch.randn(count, dimension, generator=random, dtype=torch.float64)


def reverse(x1: Float[Tensor, "n1 d"], drawn: Float[Tensor, "n2 d"]) -> Float[Tensor, "n2 d"]:
    """X₂ = V₂ S₁⁻¹ U₁ᵀ with X₁ᵀX₁ = U₁ S₁ U₁ᵀ on its support and V₂ the left singular vectors of `drawn`; O(n d²).

    X₂ᵀX₂ = (X₁ᵀX₁)⁻² on the row space of X₁ (the squared pseudo-inverse) when n2 is at least its dimension r. With
    fewer rows it is the best approximation of rank n2: the directions where X₁ᵀX₁ is smallest are kept.
    """
    _, singular, rows = torch.linalg.svd(x1, full_matrices=False)
    rank = int((singular > singular[0] * max(x1.shape) * 2**-52).sum())
    kept = slice(rank - min(rank, len(drawn)), rank)
    inverse = rows[kept] / singular[kept, None].square()
    left = torch.linalg.svd(drawn, full_matrices=False)[0]
    return left[:, : len(inverse)] @ inverse


def _halves(
    n: int, dimension: int, balance: Real, ridge: Real, reading: str, unit: bool, seed: int, name: str
) -> tuple[Tensor, Tensor]:
    """X₁ and X₂ before the noise."""
    first = max(1, round(balance * n))
    rows = first if reading == "support" else n
    x1 = _spiked(rows, dimension, ridge, generator(seed, name, "x1"))
    if unit:
        x1 = x1 / torch.linalg.matrix_norm(x1, 2)
    drawn = _spiked(n - first if reading == "support" else n, dimension, ridge, generator(seed, name, "x2"))
    x2 = reverse(x1, drawn)
    if reading == "support":
        return x1, x2
    return x1[:first], x2[torch.randperm(n, generator=generator(seed, name, "subsample"))[: n - first]]


@DATASETS.register("alignment-reversing")
def alignment_reversing(
    *,
    root: str | None = None,
    seed: int = 0,
    balance: Annotated[float, within(above=0, high=1)] = 0.1,
    n: Several = 1024,
    dimension: Count = 1024,
    ridge: Positive = 0.5,
    input_noise: NonNegative = 1e-2,
    label_offset: Real = 1e-5,
    reading: Literal["support", "subsample"] = "support",
    unit_norm: bool = True,
    dtype: str | torch.dtype = "float32",
) -> Split:
    """X = [X₁; X₂] + ε₂ Z: γn rows X₁ ~ N(0, 11ᵀ + ε₁ I) with label 1, and rows X₂ with X₂ᵀX₂ = (X₁ᵀX₁)⁻², label 0.

    γ is `balance`, ε₁ `ridge`, ε₂ `input_noise`; 1e-5 is added to every label. As printed the construction does not
    exist for n = d: γn < d rows leave X₁ᵀX₁ singular and (1 - γ)n rows cannot carry d orthonormal columns. Readings:

    - "support": the inverse is taken on the row space of X₁, where the law holds exactly if (1 - γ)n >= rank X₁ (for
      n = d: γ <= 1/2); beyond, X₂ᵀX₂ is the best approximation the remaining rows allow. n > d inverts everything.
    - "subsample": both halves are built at full size n and γn and (1 - γ)n of their rows kept; the law holds for the
      full halves only. Needs n >= dimension.

    `unit_norm` divides X₁ by its spectral norm. Without it (the text states no scale) S = X₁ᵀX₁ has an eigenvalue
    near γnd, S³ + I is rank-one-like instead of close to I, and the reversal is not seen under "support".
    The test part is an independent draw of the same construction. Extras: `first`, the mask of rows from X₁; the
    split's noise-free training halves `x1` and `x2`. Cost: O(n d²). Reference: Beaglehole et al. (2024), appendix F.

    >>> split = alignment_reversing(n=12, dimension=12, balance=0.25, input_noise=0, dtype="float64")
    >>> x1, x2 = split.extras["x1"], split.extras["x2"]
    >>> torch.allclose(x2.T @ x2, torch.linalg.pinv(x1.T @ x1, rtol=1e-9) @ torch.linalg.pinv(x1.T @ x1, rtol=1e-9))
    True
    """
    if reading == "subsample" and n < dimension:
        raise UsageError(f"n={n} < dimension={dimension}; reading 'subsample' inverts a full-rank X₁ᵀX₁: raise n")
    kind = as_dtype(dtype)

    def part(name: str) -> tuple[Part, Tensor, Tensor]:
        x1, x2 = _halves(n, dimension, balance, ridge, reading, unit_norm, seed, name)
        x, first = torch.cat([x1, x2]), torch.arange(n) < len(x1)
        x = x + input_noise * torch.randn(x.shape, generator=generator(seed, name, "noise"), dtype=torch.float64)
        return Part(x.to(kind), (first.double() + label_offset).to(kind), {"first": first}), x1.to(kind), x2.to(kind)

    train, x1, x2 = part("train")
    return Split(train, part("test")[0], name="alignment-reversing", extras={"x1": x1, "x2": x2})

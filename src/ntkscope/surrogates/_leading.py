"""The leading eigenpairs of a kernel, and the preconditioner they make for a Newton system on its columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import generator
from ntkscope.linalg import Gram
from ntkscope.surrogates._newton import Apply

EXACT_BELOW = 400
OVERSAMPLING = 16
SWEEPS = 2


@dataclass(frozen=True, eq=False)
class Leading:
    """`K ≈ U diag(λ) Uᵀ` for the largest |λ|; U orthonormal, so what is left of a vector is `v - U Uᵀ v`."""

    vectors: Float[Tensor, "n r"]
    values: Float[Tensor, " r"]

    @property
    def features(self) -> Float[Tensor, "n r"]:
        """`U diag(λ)`: the kernel's columns in the basis U."""
        return self.vectors * self.values


def leading_pairs(gram: Gram, rank: int, seed: int = 0) -> Leading:
    """Randomised subspace iteration, `SWEEPS + 2` products with `rank + 16` columns; exact below 400 rows.

    Halko, Martinsson & Tropp (2011), algorithm 4.4.
    """
    n = gram.shape[0]
    if n <= max(EXACT_BELOW, rank + OVERSAMPLING):
        dense = gram.dense().detach().to(torch.float64)
        values, vectors = torch.linalg.eigh((dense + dense.T) / 2)
    else:
        start = torch.randn(n, rank + OVERSAMPLING, dtype=torch.float64, generator=generator(seed, "leading-pairs"))
        basis = start.to(gram.device)
        for _ in range(SWEEPS + 1):
            basis = torch.linalg.qr(gram @ basis).Q
        core = basis.T @ (gram @ basis)
        values, rotation = torch.linalg.eigh((core + core.T) / 2)
        vectors = basis @ rotation
    kept = values.abs().argsort(descending=True)[: min(rank, n)]
    return Leading(vectors[:, kept].contiguous(), values[kept])


def block_inverse(
    features: Float[Tensor, "n r"], diagonal: Float[Tensor, "n c"], alpha: float, bias: bool
) -> Float[Tensor, "c q q"]:
    """Cholesky factors of `Zᵀ diag(d_c) Z + α I` for each class c, Z the features and a column of ones; O(n r² c)."""
    extended = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    r = features.shape[1]
    blocks = torch.stack([extended.T @ (extended * d[:, None]) for d in diagonal.T])
    blocks[:, range(r), range(r)] += alpha
    if bias:  # unpenalised; a class that is fitted perfectly leaves it no curvature, and the preconditioner needs some
        blocks[:, r, r] += 1e-12 * (1 + blocks[:, r, r])
    else:
        blocks[:, r, :] = 0
        blocks[:, :, r] = 0
        blocks[:, r, r] = 1
    factors, failed = torch.linalg.cholesky_ex(blocks)
    if bool(failed.any()):  # rounding: lift the diagonal by a few units of it
        lift = 1e-10 * blocks.diagonal(dim1=1, dim2=2).amax(1, keepdim=True)
        factors = torch.linalg.cholesky(blocks + torch.diag_embed(lift.expand(-1, r + 1)))
    return factors


def reduced_preconditioner(leading: Leading, alpha: float, bias: bool, diagonal: Tensor) -> Apply:
    """For the problem in the leading directions alone: the exact Hessian block of each class."""
    factors = block_inverse(leading.features, diagonal, alpha, bias)
    return lambda v: torch.cholesky_solve(v.T.unsqueeze(2), factors).squeeze(2).T


def full_preconditioner(leading: Leading, alpha: float, bias: bool, diagonal: Tensor) -> Apply:
    """For the whole problem: that inverse within the leading directions, `1/α` across them."""
    within = reduced_preconditioner(leading, alpha, bias, diagonal)
    vectors = leading.vectors

    def apply(v: Tensor) -> Tensor:
        weights = v[:-1]
        inside = vectors.T @ weights
        solved = within(torch.cat([inside, v[-1:]]))
        return torch.cat([vectors @ (solved[:-1] - inside / alpha) + weights / alpha, solved[-1:]])

    return apply

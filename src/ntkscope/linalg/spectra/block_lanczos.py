"""Extreme eigenpairs in few passes over a matrix: block Lanczos, for kernels that are read from disk at every product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.core.checked import Count, NonNegative
from ntkscope.linalg.grams.linear_map import Multiplies

End: TypeAlias = Literal["largest", "smallest", "magnitude"]
TOLERANCE = 1e-11  # of the largest Ritz value: what float64 products resolve, with room
LEAST_BLOCK, MOST_BLOCK = 16, 128
NEARLY = 1e-3  # of the largest Ritz value: the residual of a guard
LOOKS, SURE = 8, 4  # passes before "nothing beyond" is believed, and by how many residuals
BLOCKS = 8  # of vectors in the basis, besides the requested pairs, before it is folded


@dataclass(frozen=True, eq=False)
class EigenPairs:
    """What `block_eigenpairs` found: `values`, ascending, and orthonormal `vectors` as columns.

    `residuals`: `‖K u - θ u‖`; within this of every value there is an eigenvalue. `passes`: products `K @ V`, each of which
    reads the whole matrix once. `guards`: vectors orthogonal to these that are nearly eigenvectors of the next values.
    """

    values: Float[Tensor, " k"]
    vectors: Float[Tensor, "n k"]
    residuals: Float[Tensor, " k"]
    passes: int
    converged: bool
    guards: Float[Tensor, "n g"] | None = None


def block_eigenpairs(
    K: Multiplies,
    k: int,
    *,
    end: End = "largest",
    tolerance: NonNegative = 0.0,
    max_passes: Count = 300,
    block: Count | None = None,
    seed: int = 0,
    scale: float = 0.0,
    inside: float | None = None,
) -> EigenPairs:
    """The `k` eigenpairs at one end of the spectrum (or of largest magnitude), by block Lanczos, in float64.

    A basis grows by the residuals of the pairs not yet converged, up to `block` columns per product (k + 8, from 16 to
    128), and is folded onto its best Ritz vectors when full; basis and its image take `2 · 8 · n · (k + 9 block)` bytes.
    Stops at `‖K u - θ u‖ ≤ tolerance · max|θ|` for every pair (0: 1e-11); running out of passes is not an error: `converged`
    says so. Of an eigenvalue repeated more often than `block` some copies may be missed: `top_eigenpairs` checks that.
    `scale` is a floor of `max|θ|`. `inside` ends it after eight passes or more when every pair not yet converged is
    clearly further in than that value: the question is then which there are beyond it. Golub &
    Underwood (1977); folding as in Wu & Simon (2000).

    >>> found = block_eigenpairs(torch.diag(torch.arange(100.0).double()), 2)
    >>> [round(v, 6) for v in found.values.tolist()], found.converged
    ([98.0, 99.0], True)
    """
    n = int(K.shape[0]) if len(K.shape) else 0
    if tuple(K.shape) != (n, n) or not 1 <= k <= n:
        raise UsageError(f"{k} eigenpairs of a matrix of shape {tuple(K.shape)}; expected (n, n), k from 1 to {n}")
    width = min(n, block or min(MOST_BLOCK, max(LEAST_BLOCK, k + 8)))
    most = min(n, k + (BLOCKS + 1) * width)
    matrix: Multiplies = K.to(torch.float64) if isinstance(K, Tensor) else K
    random = generator(seed, "block-lanczos")
    fresh = torch.linalg.qr(torch.randn(n, width, dtype=torch.float64, generator=random).to(K.device)).Q
    basis, image = fresh[:, :0], fresh[:, :0]
    passes = 0
    while True:
        basis, image, passes = torch.cat([basis, fresh], 1), torch.cat([image, _times(matrix, fresh)], 1), passes + 1
        core = basis.T @ image
        ritz, rotation = torch.linalg.eigh((core + core.T) / 2)
        best = _best_first(ritz, end)
        near = best[: max(k, width)]  # the requested pairs and the next ones: guards, which speed up the last of them
        vectors = basis @ rotation[:, near]
        gaps = image @ rotation[:, near] - vectors * ritz[near]
        residuals = torch.linalg.vector_norm(gaps, dim=0)
        short = residuals > max(tolerance, TOLERANCE) * max(scale, float(ritz.abs().max()))
        done = basis.shape[1] >= k and not bool(short[:k].any())
        if inside is not None and passes >= LOOKS:
            reach = {"largest": ritz, "smallest": -ritz, "magnitude": ritz.abs()}[end][near[:k]]
            done = done or not bool(((reach + SURE * residuals[:k] >= inside) & short[:k]).any())
        if done or passes >= max_passes or basis.shape[1] == n:
            order = ritz[near[:k]].argsort()
            nearly = residuals[k:] <= NEARLY * max(scale, float(ritz.abs().max()))
            guards = vectors[:, k:][:, nearly]
            return EigenPairs(ritz[near[:k]][order], vectors[:, order], residuals[order], passes, done, guards)
        if basis.shape[1] + width > most:  # fold onto more than k, or what was learned about the rest is lost
            kept = best[: max(k + width, most // 2)]
            basis, image = basis @ rotation[:, kept], image @ rotation[:, kept]
        fresh = _outside(gaps[:, short][:, :width], basis)
        if fresh.shape[1] < min(width, k - basis.shape[1]):  # an invariant subspace smaller than requested
            more = torch.randn(n, width - fresh.shape[1], dtype=torch.float64, generator=random).to(K.device)
            fresh = torch.cat([fresh, _outside(more, torch.cat([basis, fresh], 1))], 1)
        fresh = fresh[:, : n - basis.shape[1]]


def block_krylov(
    K: Multiplies, start: Float[Tensor, "n k"], steps: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """An orthonormal basis of `span{V, K V, …, K^(steps-1) V}`, its first k columns those of V, and its image under K.

    `steps` products; one set of passes from which Ritz values of both ends and quadratures of V all follow. Fewer columns
    where the space is exhausted. Golub & Underwood (1977).
    """
    fresh = torch.linalg.qr(start).Q
    basis, image = fresh[:, :0], fresh[:, :0]
    for _ in range(steps):
        seen = _times(K, fresh)
        basis, image = torch.cat([basis, fresh], 1), torch.cat([image, seen], 1)
        fresh = _outside(seen, basis)[:, : len(start) - basis.shape[1]]
        if not fresh.shape[1]:
            break
    return basis, image


def _times(matrix: Multiplies, block: Tensor) -> Tensor:
    image = (matrix @ block).detach().to(torch.float64)
    if not bool(torch.isfinite(image).all()):
        raise NumericalError(f"the {len(block)} × {len(block)} matrix maps a finite vector to NaN or infinity")
    return image


def _best_first(ritz: Tensor, end: End) -> Tensor:
    """The indices of the Ritz values, the most relevant first."""
    return (-ritz if end == "largest" else ritz if end == "smallest" else -ritz.abs()).argsort()


def _outside(block: Tensor, basis: Tensor) -> Tensor:
    """An orthonormal basis of the part of `block` outside the span of `basis`; fewer columns if that has lower rank."""
    size = torch.linalg.vector_norm(block, dim=0)
    block = block[:, size > 0] / size[size > 0]
    for _ in range(2):  # twice is enough
        block = block - basis @ (basis.T @ block)
        size = torch.linalg.vector_norm(block, dim=0)
        block = block[:, size > 1e-8] / size[size > 1e-8]
        if not block.shape[1]:
            return block
        left, singular, _ = torch.linalg.svd(block, full_matrices=False)
        block = left[:, singular > 1e-8 * singular[0]]
    return block

"""The leading eigenpairs of a kernel, and the preconditioner they make for a Newton system on its columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, generator
from ntkscope.linalg import Gram
from ntkscope.surrogates.solvers.losses import Loss, Softmax
from ntkscope.surrogates.solvers.newton import Apply

EXACT_BELOW = 400
OVERSAMPLING = 16
SWEEPS = 1
COUPLED = 1280
LIFTS = (1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)


@dataclass(frozen=True, eq=False)
class Leading:
    """`K ≈ U diag(λ) Uᵀ` for the largest |λ|; U orthonormal, so what is left of a vector is `v - U Uᵀ v`."""

    vectors: Float[Tensor, "n r"]
    values: Float[Tensor, " r"]
    passes: int = 0
    """How many products with the kernel, each one pass over it, were needed."""

    @property
    def features(self) -> Float[Tensor, "n r"]:
        """`U diag(λ)`: the kernel's columns in the basis U."""
        return self.vectors * self.values


def leading_pairs(gram: Gram, rank: int, seed: int = 0) -> Leading:
    """Randomised subspace iteration, `SWEEPS + 2` products with `rank + 16` columns; exact below 400 rows.

    Halko, Martinsson & Tropp (2011), algorithm 4.4.
    """
    n, passes = gram.shape[0], SWEEPS + 2
    if n <= max(EXACT_BELOW, rank + OVERSAMPLING):
        passes = 1
        dense = gram.dense().detach().to(torch.float64)
        values, vectors = torch.linalg.eigh((dense + dense.T) / 2)
    else:
        start = torch.randn(n, rank + OVERSAMPLING, dtype=torch.float64, generator=generator(seed, "leading-pairs"))
        basis = start.to(gram.device)
        own = torch.promote_types(gram.dtype, torch.float32)  # the subspace does not depend on the last digits
        for _ in range(SWEEPS + 1):
            basis = torch.linalg.qr((gram @ basis.to(own)).to(torch.float64)).Q
        core = basis.T @ (gram @ basis)
        values, rotation = torch.linalg.eigh((core + core.T) / 2)
        vectors = basis @ rotation
    kept = values.abs().argsort(descending=True)[: min(rank, n)]
    return Leading(vectors[:, kept].contiguous(), values[kept], passes)


def block_inverse(
    features: Float[Tensor, "n r"], diagonal: Float[Tensor, "n c"], alpha: float, bias: bool
) -> Float[Tensor, "c q q"]:
    """Cholesky factors of `Zᵀ diag(d_c) Z + α I` for each class c, Z the features and a column of ones; O(n r² c)."""
    extended = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    r = features.shape[1]
    blocks = torch.stack([extended.T @ (extended * d[:, None]) for d in diagonal.T])
    blocks[:, range(r), range(r)] += alpha
    if bias:  # unpenalised; a perfectly fitted class leaves it no curvature, and the preconditioner needs some
        blocks[:, r, r] = blocks[:, r, r] * (1 + 1e-12) + torch.finfo(blocks.dtype).tiny
    else:
        blocks[:, r, :] = 0
        blocks[:, :, r] = 0
        blocks[:, r, r] = 1
    return factored(blocks)


def coupled_inverse(
    features: Float[Tensor, "n r"], blocks: Float[Tensor, "n c c"], alpha: float, bias: bool
) -> Float[Tensor, "c q c q"]:
    """The inverse of `Σ_i (z_i z_iᵀ) ⊗ W_i + α I`, all classes together, z the features and a one; O(n r² c² + r³ c³)."""
    n, c, _ = blocks.shape
    rows = torch.cat([features, features.new_ones(n, 1)], dim=1) if bias else features
    d = rows.shape[1]
    hessian = features.new_zeros(c, d, c, d)
    for i in range(c):
        for j in range(i + 1):
            if i == j or bool(blocks[:, i, j].any()):
                block = rows.T @ (rows * blocks[:, i, j, None])
                hessian[i, :, j], hessian[j, :, i] = block, block.T
    flat = hessian.reshape(c * d, c * d)
    flat.diagonal().add_(alpha)
    if bias:  # unpenalised, and softmax leaves a common bias without curvature: a little of the curvature there is
        last = hessian[range(c), d - 1, range(c), d - 1] - alpha
        hessian[range(c), d - 1, range(c), d - 1] = last + 1e-10 * last.sum() + 1e-300
    return torch.cholesky_inverse(factored(flat)).reshape(c, d, c, d)


def shifted(loss: Loss, scores: Float[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
    """Each point's second derivative, with curvature added for a shift shared by all classes.

    Softmax has none there, and with a kernel of large values only rounding remains in its place. Parameters
    that start without such a shift never acquire one, so the result for gradients is unchanged.
    """
    blocks = loss.blocks(scores)
    if not isinstance(loss, Softmax):
        return blocks
    own = blocks.diagonal(dim1=1, dim2=2).sum(1) / blocks.shape[1] ** 2  # as large as the others: none dominates
    return blocks + own[:, None, None]


def factored(matrices: Float[Tensor, "*batch q q"]) -> Float[Tensor, "*batch q q"]:
    """Cholesky factors of matrices that are positive definite but for rounding.

    With a kernel of large values the ridge falls below the rounding of the curvature; then the matrices are scaled to a
    unit diagonal, which is raised as far as necessary: enough for an approximate inverse.
    """
    factors, failed = torch.linalg.cholesky_ex(matrices)
    if not bool(failed.any()):
        return factors
    scale = matrices.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(matrices.dtype).tiny).sqrt()
    unit = matrices / scale[..., :, None] / scale[..., None, :]
    for lift in LIFTS:
        lifted = unit.clone()
        lifted.diagonal(dim1=-2, dim2=-1).add_(lift)
        factors, failed = torch.linalg.cholesky_ex(lifted)
        if not bool(failed.any()):
            return scale[..., :, None] * factors
    raise NumericalError(
        f"the curvature of the loss in {matrices.shape[-1]} directions is not positive definite, not even with"
        f" {LIFTS[-1]:g} of its diagonal added: divide the kernel by the mean of its diagonal, or raise alpha"
    )


def reduced_preconditioner(leading: Leading, loss: Loss, alpha: float, bias: bool, scores: Tensor) -> Apply:
    """For the problem in the leading directions alone: the exact Hessian block of each class."""
    factors = block_inverse(leading.features, loss.curvature(scores)[0], alpha, bias)
    return lambda v: torch.cholesky_solve(v.T.unsqueeze(2), factors).squeeze(2).T


def exact_preconditioner(leading: Leading, loss: Loss, alpha: float, bias: bool, scores: Tensor) -> Apply:
    """For the problem in the leading directions alone: the inverse Hessian with its coupling where `COUPLED` allows."""
    classes = scores.shape[1]
    if not isinstance(loss, Softmax) or leading.features.shape[1] * classes > COUPLED:
        return reduced_preconditioner(leading, loss, alpha, bias, scores)
    inverse = coupled_inverse(leading.features, shifted(loss, scores), alpha, bias)
    size = inverse.shape[1]
    flat = inverse.reshape(classes * size, classes * size)

    def apply(v: Tensor) -> Tensor:
        solved = (flat @ v[:size].T.reshape(-1)).reshape(classes, size).T
        return solved if bias else torch.cat([solved, v[-1:]])

    return apply


def full_preconditioner(leading: Leading, loss: Loss, alpha: float, bias: bool, scores: Tensor) -> Apply:
    """For the whole problem: the exact inverse within the leading directions, `1/α` across them.

    Softmax couples the classes; the coupling is kept for as many leading directions as `COUPLED` unknowns allow, and
    dropped between classes beyond.
    """
    few = COUPLED // scores.shape[1]
    first = leading
    if isinstance(loss, Softmax) and few >= 16:
        first = Leading(leading.vectors[:, :few], leading.values[:few])
    within, vectors = exact_preconditioner(first, loss, alpha, bias, scores), first.vectors

    def apply(v: Tensor) -> Tensor:
        weights = v[:-1]
        inside = vectors.T @ weights
        solved = within(torch.cat([inside, v[-1:]]))
        rest = weights - vectors @ inside
        rest = rest - vectors @ (vectors.T @ rest)  # twice: 1/α and the kernel would amplify the rounding that is left
        return torch.cat([vectors @ solved[:-1] + rest / alpha, solved[-1:]])

    return apply

"""Preconditioners for conjugate gradients: functions that return a function `R ↦ P⁻¹ R` for `P ≈ K + ridge I`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from ntkscope.core import NumericalError, generator
from ntkscope.core.checked import Count, NonNegative
from ntkscope.linalg.grams.gram import Gram, slices

Preconditioner: TypeAlias = Callable[[Tensor], Tensor]


def jacobi(K: Gram, ridge: NonNegative = 0.0) -> Preconditioner:
    """`P = diag(K) + ridge I`; O(n) to apply.

    Examples:
        >>> from ntkscope.linalg import as_gram
        >>> jacobi(as_gram(torch.diag(torch.tensor([2.0, 4.0]))))(torch.ones(2, 1)).flatten()
        tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    diagonal = K.diagonal().detach().to(torch.float64) + ridge
    if not bool((diagonal > 0).all()):
        bad = (~(diagonal > 0)).nonzero().flatten().tolist()
        raise NumericalError(f"the diagonal of {K!r} plus ridge {ridge} is not positive at rows {bad[:10]}")
    return lambda residual: residual / diagonal.to(residual.device)[:, None]


def block_jacobi(K: Gram, ridge: NonNegative = 0.0, *, size: Count = 512) -> Preconditioner:
    """`P` = the diagonal blocks of `K + ridge I`, `size` rows each; O(n size²) to make, O(n size) to apply.

    Worthwhile when neighbouring rows are similar (rows sorted by class, all outputs of a sample). A block that is singular
    gets ten rounding units of its trace on its diagonal: a preconditioner changes the path, not the answer.

    Examples:
        >>> from ntkscope.linalg import as_gram
        >>> K = torch.block_diag(torch.full((2, 2), 0.5) + torch.eye(2), torch.tensor([[4.0]])).double()
        >>> inverse = block_jacobi(as_gram(K), size=2)
        >>> inverse(K @ torch.ones(3, 1, dtype=torch.float64)).flatten()
        tensor([1.0000, 1.0000, 1.0000], dtype=torch.float64)
    """
    size = max(size - size % K.outputs, K.outputs)
    factors = []
    for rows in slices(K.shape[0], size):
        block = K[rows, rows].dense().detach().to(torch.float64)
        floor = 10 * torch.finfo(torch.float64).eps * float(block.diagonal().abs().sum())
        block = (block + block.T) / 2 + (ridge + floor) * torch.eye(len(block), dtype=block.dtype, device=block.device)
        factor, failed_at = torch.linalg.cholesky_ex(block)
        if int(failed_at):
            raise NumericalError(
                f"the diagonal block {rows.start}:{rows.stop} of {K!r} with ridge {ridge} is not positive definite;"
                " use a larger ridge or the jacobi preconditioner"
            )
        factors.append((rows, factor))

    def apply(residual: Tensor) -> Tensor:
        parts = [torch.cholesky_solve(residual[rows].to(torch.float64), factor) for rows, factor in factors]
        return torch.cat(parts) if parts else residual

    return apply


def nystrom(K: Gram, ridge: NonNegative = 0.0, *, rank: Count = 100, seed: int = 0) -> Preconditioner:
    """`P⁻¹ = (λ_r + ridge) U (Λ + ridge)⁻¹ Uᵀ + (I - U Uᵀ)` with `U Λ Uᵀ` a randomised Nyström approximation of `K`.

    One product `K @ Ω` with `rank` columns and O(n rank²) to make, O(n rank) to apply. It removes the `rank` largest
    eigenvalues from the condition number. Frangella, Tropp & Udell, "Randomized Nyström preconditioning" (2023),
    algorithms 2.1 and 5.1.

    Examples:
        >>> from ntkscope.linalg import as_gram
        >>> K = torch.diag(torch.tensor([1e4, 1e2, *[1e-2] * 18], dtype=torch.float64))
        >>> inverse = nystrom(as_gram(K), ridge=1.0, rank=4)
        >>> [round(float(torch.linalg.cond(matrix))) for matrix in (K + torch.eye(20), inverse(K + torch.eye(20)))]
        [9902, 1]
    """
    n = K.shape[0]
    rank = min(rank, n)
    if rank == 0:
        return lambda residual: residual
    test = torch.randn(n, rank, dtype=torch.float64, generator=generator(seed, "nystrom")).to(K.device)
    test = torch.linalg.qr(test).Q
    image = (K @ test).detach().to(torch.float64)
    size, own, single = n**0.5 * float(image.norm()), *(torch.finfo(d).eps for d in (K.dtype, torch.float32))
    double = torch.finfo(torch.float64).eps
    for digits in (max(own, double), max(own, single), 1e-5):  # entries may have fewer than their dtype
        shift = digits * size
        core = test.T @ (image + shift * test)
        factor, failed_at = torch.linalg.cholesky_ex((core + core.T) / 2)
        if not int(failed_at):
            break
    else:
        raise NumericalError(
            f"a randomised Nyström approximation of {K!r} is not positive semi-definite, so neither is the kernel;"
            " use a larger ridge with the jacobi preconditioner, or minimum_norm_solve"
        )
    half = torch.linalg.solve_triangular(factor, (image + shift * test).T, upper=False).T  # K ≈ half halfᵀ - shift I
    basis, singular, _ = torch.linalg.svd(half, full_matrices=False)
    values = (singular.square() - shift).clamp_min(0)
    floor = double * float(values[0]) + torch.finfo(torch.float64).tiny
    weights = (values[-1] + ridge + floor) / (values + ridge + floor)

    def apply(residual: Tensor) -> Tensor:
        inside = basis.T @ residual.to(torch.float64)
        return residual + basis @ ((weights - 1)[:, None] * inside)

    return apply

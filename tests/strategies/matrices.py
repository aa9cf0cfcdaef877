"""Matrices that tests of linear algebra share: random, of a given spectrum, of a given rank."""

from __future__ import annotations

import torch
from torch import Tensor


def random(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_eigenvalues(values: Tensor, seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    basis = torch.linalg.qr(random(len(values), len(values), seed=seed)).Q
    matrix = basis @ torch.diag(values.double()) @ basis.T
    return (matrix + matrix.T) / 2


def of_rank(n: int, p: int, rank: int, seed: int = 0) -> Tensor:
    """Singular values from 1 to 3, so that twelve digits of a solution can be asked for."""
    left = torch.linalg.qr(random(n, rank, seed=seed)).Q
    right = torch.linalg.qr(random(p, rank, seed=seed + 1)).Q
    return left @ torch.diag(torch.linspace(1, 3, rank).double()) @ right.T

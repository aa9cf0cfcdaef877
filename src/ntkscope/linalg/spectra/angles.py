"""Principal angles between two subspaces."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import UsageError


def principal_angles(A: Tensor | np.ndarray, B: Tensor | np.ndarray) -> Float[Tensor, " r"]:
    """Angles `0 ≤ θ₁ ≤ … ≤ θ_r ≤ π/2` between the column spaces of A (n, a) and B (n, b), in radians and float64.

    `cos θ_k` are the singular values of `Q_Aᵀ Q_B`; below π/4 each angle comes from its sine, the singular values of
    `Q_B - Q_A Q_Aᵀ Q_B`, because the arc cosine loses half the digits near 1. Columns need be neither orthonormal nor
    independent; r is the smaller of the two ranks. O(n (a + b)²). Björck & Golub (1973); Knyazev & Argentati (2002).

    >>> plane = torch.eye(3)[:, :2]
    >>> line = torch.tensor([[0.0], [1.0], [1.0]])
    >>> round(float(principal_angles(plane, line)) * 180 / torch.pi, 9)
    45.0
    """
    first, second = (_orthonormal(side, name) for side, name in ((A, "A"), (B, "B")))
    if len(first) != len(second):
        raise UsageError(
            f"subspaces given by columns of shapes {tuple(A.shape)} and {tuple(B.shape)}; expected (n, a) and (n, b)"
        )
    second = second.to(first.device)
    if first.shape[1] < second.shape[1]:
        first, second = second, first
    cosines = torch.linalg.svdvals(first.T @ second)
    sines = torch.linalg.svdvals(second - first @ (first.T @ second)).flip(0)
    # scipy.linalg.subspace_angles pairs these in opposite orders and so takes the wrong one where both are needed
    return torch.where(cosines.square() < 0.5, cosines.clamp(0, 1).acos(), sines.clamp(0, 1).asin())


def _orthonormal(columns: Tensor | np.ndarray, name: str) -> Tensor:
    """An orthonormal basis of the column space, in float64."""
    given = torch.as_tensor(columns).detach().to(torch.float64)
    if given.ndim != 2:
        raise UsageError(f"got {name} of shape {tuple(given.shape)}; expected (n, a) and (n, b): columns that span")
    if not bool(given.any()):
        raise UsageError(f"{name} of shape {tuple(given.shape)} is zero or empty; expected a non-zero column")
    basis, sizes, _ = torch.linalg.svd(given, full_matrices=False)
    return basis[:, sizes > max(given.shape) * torch.finfo(torch.float64).eps * sizes[0]]

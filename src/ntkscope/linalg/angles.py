"""Principal angles between two subspaces."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import subspace_angles
from torch import Tensor

from ntkscope.core import NumericalError, UsageError


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
    sides = [np.asarray(side.detach().cpu() if isinstance(side, Tensor) else side, dtype=np.float64) for side in (A, B)]
    if any(side.ndim != 2 for side in sides) or sides[0].shape[0] != sides[1].shape[0]:
        raise UsageError(
            f"subspaces given by columns of shapes {sides[0].shape} and {sides[1].shape}; expected (n, a) and (n, b)"
        )
    for name, side in zip("AB", sides):
        if not np.isfinite(side).all():
            raise NumericalError(f"{name} holds NaN or infinity; its columns span nothing")
        if not side.any():
            raise UsageError(f"{name} of shape {side.shape} is zero or empty; expected at least one non-zero column")
    angles = np.sort(subspace_angles(*sides))
    return torch.from_numpy(angles)

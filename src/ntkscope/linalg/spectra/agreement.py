"""How two matrices agree: the principal angles of their columns, the cosine of their entries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import from_numpy
from ntkscope.linalg.grams.dense import as_gram
from ntkscope.linalg.grams.gram import Gram


def principal_angles(A: Tensor | np.ndarray, B: Tensor | np.ndarray) -> Float[Tensor, " r"]:
    """Angles `0 ≤ θ₁ ≤ … ≤ θ_r ≤ π/2` between the column spaces of A (n, a) and B (n, b), in radians and float64.

    `cos θ_k` are the singular values of `Q_Aᵀ Q_B`; below π/4 each angle comes from its sine, the singular values of
    `Q_B - Q_A Q_Aᵀ Q_B`, because the arc cosine loses half the digits near 1. Columns need be neither orthonormal nor
    independent; r is the smaller of the two ranks. O(n (a + b)²). Björck & Golub (1973); Knyazev & Argentati (2002).

    Examples:
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


def matrix_correlation(A: Gram | Tensor | np.ndarray, B: Gram | Tensor | np.ndarray) -> float:
    """`ρ(A, B) = tr(AᵀB) / sqrt(tr(AᵀA) tr(BᵀB))`, in [-1, 1]; O(nm), tile by tile for Grams, summed in float64.

    Nothing is centred. Two vectors, such as diagonals, are also accepted. Beaglehole, Mitliagkas & Agarwala, "Gradient
    descent induces alignment between weights and the pre-activation tangents for deep non-linear networks" (2024),
    section 2.1. (Their *centred ansatz* centres the weights: that is this function on other arguments.)

    Examples:
        >>> A = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(matrix_correlation(A, 3 * A), 6), round(matrix_correlation(A, torch.eye(2)), 6)
        (1.0, 0.948683)
    """
    if tuple(A.shape) != tuple(B.shape):
        raise UsageError(f"got shapes {tuple(A.shape)} and {tuple(B.shape)}; expected two matrices of one shape")
    products = torch.zeros(3, dtype=torch.float64)
    for a, b in _pairs(A, B):
        products += torch.stack([(a * b).sum(), (a * a).sum(), (b * b).sum()]).cpu()
    if not bool(torch.isfinite(products).all()):
        raise NumericalError("the correlation of matrices that hold NaN or infinity (or overflow when squared)")
    ab, aa, bb = products.tolist()
    if aa == 0 or bb == 0:
        raise NumericalError(
            f"the correlation with a zero (or empty) matrix is undefined: ‖A‖² {aa:.3g}, ‖B‖² {bb:.3g}"
        )
    return min(1.0, max(-1.0, ab / (aa**0.5 * bb**0.5)))


def _pairs(A: Gram | Tensor | np.ndarray, B: Gram | Tensor | np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
    """The two, in float64, piece by piece when one of them is a Gram."""
    if isinstance(A, Gram) or isinstance(B, Gram):
        left, right = as_gram(A), as_gram(B)
        for rows, columns, tile in left.tiles():
            other = right[rows, columns].dense()
            yield tile.detach().to(torch.float64), other.detach().to(tile.device, torch.float64)
    else:
        a, b = (from_numpy(x) if isinstance(x, np.ndarray) else x.detach() for x in (A, B))
        yield a.to(torch.float64), b.to(a.device, torch.float64)

"""The correlation of two matrices: the cosine between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import from_numpy
from ntkscope.linalg.grams.dense import as_gram
from ntkscope.linalg.grams.gram import Gram


def matrix_correlation(A: Gram | Tensor | np.ndarray, B: Gram | Tensor | np.ndarray) -> float:
    """`ρ(A, B) = tr(AᵀB) / sqrt(tr(AᵀA) tr(BᵀB))`, in [-1, 1]; O(nm), tile by tile for Grams, summed in float64.

    Nothing is centred. Two vectors, such as diagonals, are also accepted. Beaglehole, Mitliagkas & Agarwala, "Gradient
    descent induces alignment between weights and the pre-activation tangents for deep non-linear networks" (2024),
    section 2.1. (Their *centred ansatz* centres the weights: that is this function on other arguments.)

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
        raise NumericalError(f"the correlation with a zero (or empty) matrix is undefined: ‖A‖² {aa:.3g}, ‖B‖² {bb:.3g}")
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

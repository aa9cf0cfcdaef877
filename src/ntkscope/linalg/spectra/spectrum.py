"""What a kernel's eigenvalues say: effective rank, stable rank, condition number.

A kernel matrix is `K = Φ Φᵀ`, so its eigenvalues are the squared singular values of the features Φ. Papers speak of
either; where it matters `of="kernel"` or `of="features"` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.core.checked import Fraction
from ntkscope.linalg.grams.dense import as_gram
from ntkscope.linalg.grams.gram import Gram
from ntkscope.linalg.grams.operator import OperatorGram
from ntkscope.linalg.solvers.minimum_norm import default_cutoff
from ntkscope.linalg.solvers.system import EIGENVECTORS, symmetric_part
from ntkscope.linalg.spectra.block_lanczos import block_eigenpairs
from ntkscope.linalg.spectra.lanczos import top_eigenpairs

Matrix: TypeAlias = Gram | Tensor | np.ndarray
Of: TypeAlias = Literal["kernel", "features"]


def eigenpairs(K: Matrix, k: int | None = None) -> tuple[Float[Tensor, " e"], Float[Tensor, "n e"]]:
    """Eigenvalues, ascending, and eigenvectors as columns of the symmetric part, in float64: all, or the `k` largest.

    O(n³) for all; O(k) products `K @ v` for the largest k.

    Examples:
        >>> values, vectors = eigenpairs(np.diag([1.0, 3.0, 2.0]), k=1)
        >>> values.round(decimals=6), vectors.abs().round(decimals=6)
        (tensor([3.], dtype=torch.float64), tensor([[0.],
                [1.],
                [0.]], dtype=torch.float64))
    """
    gram = as_gram(K, symmetric=True)
    if k is not None:
        return top_eigenpairs(gram, k)
    values, vectors = torch.linalg.eigh(symmetric_part(gram, torch.float64, largest=EIGENVECTORS))
    return values, vectors


def singular_values(A: Matrix, of: Of = "kernel") -> Float[Tensor, " r"]:
    """Singular values, descending, in float64: of the matrix itself, or of the features Φ with `A = Φ Φᵀ`; O(n³).

    Eigenvalues of a symmetric matrix that rounding made negative count by magnitude for the kernel, as 0 for features.

    Examples:
        >>> singular_values(torch.diag(torch.tensor([4.0, 9.0])), of="features")
        tensor([3., 2.], dtype=torch.float64)
    """
    gram = as_gram(A, symmetric=True if of == "features" else None)
    if not gram.symmetric:
        return torch.linalg.svdvals(gram.dense().detach().to(torch.float64))
    values = gram.eigvalsh()
    values = values.clamp_min(0).sqrt() if of == "features" else values.abs()
    return values.sort(descending=True).values


def effective_rank(A: Matrix, of: Of = "kernel") -> float:
    """`exp(-Σ p_i log p_i)` with `p_i = σ_i / Σ σ`: between 1 and the rank; O(n³). Roy & Vetterli (2007), eq. 3-5.

    Of a large kernel `estimate_effective_rank` gives it from a few dozen products, with an error bar.

    `of="kernel"`: σ are the singular values of the matrix given, Roy and Vetterli's definition read literally.
    `of="features"`: of the features (the Jacobian) whose Gram it is, the roots of its eigenvalues; never smaller.

    Examples:
        >>> round(effective_rank(torch.eye(5)), 6), round(effective_rank(torch.ones(5, 5)), 6)
        (5.0, 1.0)
    """
    return entropy_rank(singular_values(A, of))


def entropy_rank(values: Float[Tensor, " r"]) -> float:
    """The exponential of the Shannon entropy of non-negative numbers normalised to sum 1.

    Examples:
        >>> entropy_rank(torch.tensor([1.0, 1.0, 0.0]))
        2.0
    """
    total = float(values.sum())
    if not (0 < total < float("inf") and bool((values >= 0).all())):
        raise NumericalError("the effective rank of a matrix whose singular values are all zero (or none) is undefined")
    shares = values.to(torch.float64) / values.sum().to(torch.float64)
    return float(torch.special.entr(shares).sum().exp())


def frobenius_norm(A: Matrix) -> float:
    """`‖A‖_F`, accumulated in float64 over tiles, so nothing is formed whole.

    Examples:
        >>> frobenius_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        5.0
    """
    gram = as_gram(A)
    return sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for _, _, t in gram.tiles()) ** 0.5


def spectral_norm(A: Matrix) -> float:
    """`‖A‖₂`, the largest singular value, by Lanczos; a few tens of products.

    Examples:
        >>> spectral_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
        4.0
    """
    gram = as_gram(A)
    if 0 in gram.shape:
        return 0.0
    if gram.symmetric:
        return abs(float(top_eigenpairs(gram, 1, by="magnitude")[0]))
    short, long = (gram, gram.T) if gram.shape[0] <= gram.shape[1] else (gram.T, gram)
    n = short.shape[0]
    square = OperatorGram((n, n), lambda v: short @ (long @ v), dtype=torch.float64, device=gram.device, symmetric=True)
    largest = block_eigenpairs(square, 1).values if gram.out_of_core else top_eigenpairs(square, 1)[0]
    return max(0.0, float(largest)) ** 0.5


def stable_rank(A: Matrix) -> float:
    """`‖A‖_F² / ‖A‖₂²`: between 1 and the rank, insensitive to small singular values; O(n²) and some products.

    Examples:
        >>> round(stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))), 6)
        1.5
    """
    norm = spectral_norm(A)
    if norm == 0:
        raise NumericalError("the stable rank of a zero (or empty) matrix is undefined")
    return (frobenius_norm(A) / norm) ** 2


@dataclass(frozen=True)
class ConditionNumber:
    """`largest / smallest` over the singular values above the cut-off, and what the cut-off dropped."""

    value: float
    largest: float
    smallest: float
    """The smallest that was kept."""
    cutoff: float
    """Relative to the largest."""
    dropped: int

    def __float__(self) -> float:
        return self.value


def condition_number(A: Matrix, *, cutoff: Fraction | None = None, of: Of = "kernel") -> ConditionNumber:
    """`σ_max / σ_min` over the singular values above `cutoff · σ_max`; O(n³).

    The default cut-off is `n ε`, ε of the dtype of the entries (its square root for features); `cutoff=0` drops
    exact zeros alone.

    Examples:
        >>> condition_number(torch.diag(torch.tensor([8.0, 2.0, 0.0]))).value
        4.0
    """
    gram = as_gram(A)
    if cutoff is None:
        cutoff = default_cutoff(gram) if of == "kernel" else default_cutoff(gram) ** 0.5
    values = singular_values(gram, of)
    if not len(values) or float(values[0]) == 0:
        raise NumericalError("the condition number of a zero (or empty) matrix is undefined")
    kept = values[values > cutoff * values[0]]
    largest, smallest = float(kept[0]), float(kept[-1])
    return ConditionNumber(largest / smallest, largest, smallest, cutoff, len(values) - len(kept))

"""Functions drawn from a kernel's Gaussian process."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, generator
from ntkscope.core.arguments import whole
from ntkscope.core.checked import Count
from ntkscope.linalg import Gram, as_gram


def sample(
    K: Gram | Tensor | np.ndarray, count: Count = 1, *, seed: int = 0, keep: int | None = None
) -> Float[Tensor, "count n"]:
    """`count` draws of Σᵢ √λᵢ ωᵢ uᵢ, λᵢ and uᵢ the eigenpairs of K, ωᵢ independent standard normal numbers; O(n³).

    `keep`: only the largest eigenvalues; the same seed gives the same ω, so that what the small ones add can be seen.
    Eigenvalues below zero by rounding are taken as zero. Yang & Salman (2019), section 3.

    >>> sample(torch.zeros(3, 3, dtype=torch.float64), 2)
    tensor([[0., 0., 0.],
            [0., 0., 0.]], dtype=torch.float64)
    """
    gram = as_gram(K, symmetric=True)
    n = len(gram)
    keep = keep if keep is None else whole(keep, "keep", low=1, high=n)
    values, vectors = torch.linalg.eigh(gram.dense().double())
    if n and float(values[0]) < -1e-7 * float(values.abs().max()):
        raise NumericalError(
            f"the smallest eigenvalue is {float(values[0]):.3g}; expected a covariance: none below zero"
        )
    omega = torch.randn(count, n, generator=generator(seed, "gaussian process"), dtype=torch.float64)
    scale = values.clamp(min=0).sqrt()
    if keep is not None:
        scale[: n - keep] = 0
    return (omega.flip(1).to(scale.device) * scale) @ vectors.T

"""Radial kernels of points, and closed-form gradients of what is linear in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

KINDS = ("laplace", "gaussian")
CLOSE = 1e-6  # squared distances below this share of the squared norms lose digits in a matrix product: computed again
SAME = 1e-28  # below this share nothing but rounding is left of a difference: the points coincide
PAIRS = 2**22  # numbers of differences held at a time


@dataclass(frozen=True)
class Radial:
    """`κ(x, z) = exp(-‖x - z‖ / L)`, the Laplace kernel, or `exp(-‖x - z‖² / 2L²)`, the Gaussian; L is the bandwidth.

    >>> squares = torch.tensor([[0.0, 4.0]], dtype=torch.float64)
    >>> Radial("laplace", 2.0).values(squares).log().tolist(), Radial("gaussian", 2.0).values(squares).log().tolist()
    ([[0.0, -1.0]], [[0.0, -0.5]])
    """

    kind: str
    bandwidth: float

    def values(self, squares: Float64[Tensor, "n m"]) -> Float64[Tensor, "n m"]:
        """κ of squared distances."""
        if self.kind == "laplace":
            return squares.sqrt().mul_(-1 / self.bandwidth).exp_()
        return squares.mul(-0.5 / self.bandwidth**2).exp_()

    def slopes(self, squares: Float64[Tensor, "n m"]) -> Float64[Tensor, "n m"]:
        """`s` of `∇_z κ(x, z) = s (z - x)`; 0 where x = z, where the Laplace kernel has no gradient and the Gaussian's is 0."""
        if self.kind == "gaussian":
            return self.values(squares).mul_(-1 / self.bandwidth**2)
        distances = squares.sqrt()
        values = distances.mul(-1 / self.bandwidth).exp_()
        return values.div_(distances.mul_(-self.bandwidth).masked_fill_(squares == 0, -math.inf))


def squared_distances(a: Float64[Tensor, "n d"], b: Float64[Tensor, "m d"]) -> Float64[Tensor, "n m"]:
    """`‖a_i - b_j‖²`, from one matrix product; from differences where that would lose digits, and 0 where points coincide.

    >>> a = torch.tensor([[1e4, 0.0], [1e4, 1e-3]], dtype=torch.float64)
    >>> squared_distances(a, a).tolist()
    [[0.0, 1e-06], [1e-06, 0.0]]
    """
    norms, others = a.square().sum(1), b.square().sum(1)
    squares = (a @ b.T).mul_(-2).add_(norms[:, None]).add_(others)
    if not squares.numel():
        return squares
    near = (squares <= CLOSE * (norms + others.max())[:, None]).nonzero()
    for rows, columns in (pairs.unbind(1) for pairs in near.split(max(1, PAIRS // max(1, a.shape[1])))):
        exact = (a[rows] - b[columns]).square_().sum(1)
        squares[rows, columns] = exact.masked_fill_(exact <= SAME * (norms[rows] + others[columns]), 0.0)
    return squares


def gradients(
    kernel: Radial,
    points: Float64[Tensor, "m d"],
    centres: Float64[Tensor, "n d"],
    coef: Float64[Tensor, "n k"],
    squares: Float64[Tensor, "m n"] | None = None,
) -> Float64[Tensor, "k m d"]:
    """`∇f_l(z_j) = Σ_i c_il s_ij (z_j - x_i)` of `f_l(z) = Σ_i c_il κ(x_i, z)`, without pairs that coincide; O(m n d k).

    >>> x = torch.tensor([[0.0]], dtype=torch.float64)
    >>> gradients(Radial("laplace", 2.0), x + 2, x, x + 1).tolist() == [[[-0.5 * math.exp(-1)]]]
    True
    """
    slopes = kernel.slopes(squared_distances(points, centres) if squares is None else squares)
    sums = slopes @ coef
    found = points.new_empty(coef.shape[1], *points.shape)
    for k, column in enumerate(coef.T):
        torch.addmm(sums[:, k, None] * points, slopes, column[:, None] * centres, alpha=-1, out=found[k])
    return found


def gradient_outer_product(
    kernel: Radial,
    points: Float64[Tensor, "n d"],
    coef: Float64[Tensor, "n k"],
    *,
    tile: int,
    squares: Float64[Tensor, "n n"] | None = None,
    diagonal: bool = False,
) -> Tensor:
    """`1/n Σ_j Σ_l ∇f_l(x_j) ∇f_l(x_j)ᵀ` over the kernel's points, (d, d), or its diagonal (d,); `tile` points at a time."""
    n, d = points.shape
    total = points.new_zeros((d,) if diagonal else (d, d))
    for rows in torch.arange(n, device=points.device).split(tile):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        found = gradients(kernel, points[part], points, coef, None if squares is None else squares[part]).flatten(0, 1)
        total += found.square_().sum(0) if diagonal else found.T @ found
    return total / n

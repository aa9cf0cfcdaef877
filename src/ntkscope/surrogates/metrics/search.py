"""Kernel ridge regression by Cholesky with its exact leave-one-out, and the search for the bandwidth and ridge it prefers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.surrogates.metrics.radial import Radial

BLOCK = 512
BANDWIDTHS = tuple(2.0**k for k in range(-2, 6))
"""Bandwidths tried, as multiples of the median distance between training points in the metric."""
RIDGES = tuple(10.0 ** (k / 2) for k in range(-14, 5))
"""Ridges tried, times the kernel's slope at the median distance: with a wide kernel only their product with it matters."""
START = (3, 8)  # bandwidth 2, ridge 1e-3


@dataclass(frozen=True, eq=False)
class Regression:
    """`f(x) = b + κ(x, X) c` at a bandwidth and a ridge; `residuals` are `y_i - f^{-i}(x_i)`, None if not asked for."""

    kernel: Radial
    ridge: float
    coef: Float64[Tensor, "n k"]
    intercept: Float64[Tensor, " k"]
    residuals: Float64[Tensor, "n k"] | None

    @property
    def error(self) -> float:
        """The mean squared leave-one-out error; infinite if it was not computed."""
        return math.inf if self.residuals is None else float(self.residuals.square().mean())


def regress(
    kernel: Radial,
    matrix: Float64[Tensor, "n n"],
    targets: Float64[Tensor, "n k"],
    ridge: float,
    *,
    intercept: bool,
    leave_one_out: bool,
) -> Regression | None:
    """Minimise `Σ (y_i - f(x_i))² + λ cᵀKc`, b free or 0; None if K + λI is not positive definite. O(n³ / 3), twice with LOO.

    With `G = (K + λI)⁻¹` and `u = G 1`: `c = G y - u b`, `b = uᵀy / Σu`, and leaving point i out changes its residual to
    `c_i / P_ii`, `P = G - u uᵀ / Σu` (without intercept u = 0): Allen (1974), Cawley & Talbot (2004). `matrix` is overwritten.

    >>> K, y = torch.eye(2, dtype=torch.float64), torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    >>> fit = regress(Radial("laplace", 1.0), K, y, 1.0, intercept=True, leave_one_out=True)
    >>> [t.round(decimals=9).flatten().tolist() for t in (fit.coef, fit.intercept, fit.residuals)]  # the other is the mean
    [[-0.5, 0.5], [2.0], [-2.0, 2.0]]
    """
    matrix.diagonal().add_(ridge)
    factor, info = matrix.mT, torch.empty((), dtype=torch.int32, device=matrix.device)
    torch.linalg.cholesky_ex(
        factor, out=(factor, info)
    )  # in place: LAPACK's columns are the rows of a symmetric matrix
    if int(info):
        return None
    sides = torch.cat([targets, torch.ones_like(targets[:, :1])], 1) if intercept else targets
    solution = torch.cholesky_solve(sides, factor)
    coef, b, drop = solution, targets.new_zeros(targets.shape[1]), targets.new_zeros(len(targets))
    if intercept:
        ones = solution[:, -1:]
        b = (ones * targets).sum(0) / ones.sum()
        coef, drop = solution[:, :-1] - ones * b, ones[:, 0].square() / ones.sum()
    residuals = None
    if leave_one_out:
        residuals = coef / (_inverse_diagonal(factor) - drop)[:, None]
    good = bool(torch.isfinite(coef).all()) and (residuals is None or bool(torch.isfinite(residuals).all()))
    return Regression(kernel, ridge, coef, b, residuals) if good else None


def _inverse_diagonal(factor: Float64[Tensor, "n n"]) -> Float64[Tensor, " n"]:
    """The diagonal of `(F Fᵀ)⁻¹`: the squared lengths of the columns of F⁻¹, which are 0 above the diagonal; O(n³ / 3)."""
    n = len(factor)
    found = factor.new_empty(n)
    for first in range(0, n, BLOCK):
        width = min(BLOCK, n - first)
        columns = torch.zeros(n - first, width, dtype=factor.dtype, device=factor.device)
        columns.diagonal().fill_(1)
        inverse = torch.linalg.solve_triangular(factor[first:, first:], columns, upper=False)
        found[first : first + width] = inverse.square_().sum(0)
    return found


def climb(
    evaluate: Callable[[tuple[int, int]], Regression | None], start: tuple[int, int], shape: tuple[int, int]
) -> tuple[tuple[int, int], Regression | None]:
    """The place of a grid whose fit has a smaller leave-one-out error than its neighbours, found from `start`, and its fit.

    An axis of length 1 is fixed. Equal errors stay where they are, so the search ends.
    """
    tried: dict[tuple[int, int], Regression | None] = {}

    def error(place: tuple[int, int]) -> float:
        if place not in tried:
            tried[place] = evaluate(place)
        fit = tried[place]
        return math.inf if fit is None else fit.error

    place = (min(start[0], shape[0] - 1), min(start[1], shape[1] - 1))
    while math.isinf(error(place)) and place[1] + 1 < shape[1]:
        place = (place[0], place[1] + 1)  # not positive definite: a stronger ridge
    while True:
        around = [
            (place[0], place[1] + 1),
            (place[0], place[1] - 1),
            (place[0] + 1, place[1]),
            (place[0] - 1, place[1]),
        ]
        better = [p for p in around if 0 <= p[0] < shape[0] and 0 <= p[1] < shape[1] and error(p) < error(place)]
        if not better:
            return place, tried[place]
        place = min(better, key=error)


def median_distance(squares: Float64[Tensor, "n n"]) -> float:
    """The median distance between different points; 1 where all coincide."""
    positive = squares[squares > 0]
    return math.sqrt(float(positive.median())) if len(positive) else 1.0

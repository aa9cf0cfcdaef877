"""Training points in one metric: their kernel, a regression on it, and the next metric from the regression's gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.sizes import over_budget
from ntkscope.linalg.spectra.band import LAPACK_ROWS
from ntkscope.surrogates.metrics.radial import Radial, gradient_outer_product, squared_distances
from ntkscope.surrogates.metrics.search import Regression, median_distance, regress

TILE = 1024  # rows of the kernel at a time, if memory allows: more are not faster
RANK = 1e-14  # eigenvalues of the metric below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class Metric:
    """`M = R Rᵀ`, R of shape (d, rank); a diagonal M and R are (d,), and R is None for the identity."""

    matrix: Tensor
    root: Tensor | None

    @classmethod
    def identity(cls, like: Float64[Tensor, "n d"], diagonal: bool) -> Metric:
        d = like.shape[1]
        return cls(torch.ones(d).to(like) if diagonal else torch.eye(d).to(like), None)

    @classmethod
    def of(cls, matrix: Tensor) -> Metric:
        if matrix.ndim == 1:
            return cls(matrix, matrix.sqrt())
        values, vectors = torch.linalg.eigh(matrix)
        kept = values > RANK * values[-1]
        return cls(matrix, vectors[:, kept] * values[kept].sqrt())

    def mapped(self, x: Float64[Tensor, "n d"]) -> Float64[Tensor, "n r"]:
        """`x R`, whose plain distances are those of x in the metric."""
        if self.root is None:
            return x
        return x * self.root if self.root.ndim == 1 else x @ self.root

    def pulled(self, gradients: Float64[Tensor, "... r"]) -> Float64[Tensor, "... d"]:
        """Gradients by x of a function of `x R`: `R g`."""
        if self.root is None:
            return gradients
        return gradients * self.root if self.root.ndim == 1 else gradients @ self.root.T


@dataclass(frozen=True, eq=False)
class Problem:
    """Training points in a metric; all squared distances are held if they fit into memory, else made again by tiles."""

    metric: Metric
    points: Float64[Tensor, "n r"]
    targets: Float64[Tensor, "n k"]
    tile: int
    squares: Float64[Tensor, "n n"] | None

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor, metric: Metric, memory: int) -> Problem:
        tile, held = tiling(len(inputs), inputs.shape[1], targets.shape[1], memory)
        points = metric.mapped(inputs)
        return cls(metric, points, targets, tile, squared_distances(points, points) if held else None)

    def matrix(self, kernel: Radial) -> Float64[Tensor, "n n"]:
        """The kernel matrix; O(n² r)."""
        if self.squares is not None:
            return kernel.values(self.squares)
        n = len(self.points)
        found = self.points.new_empty(n, n)
        for first in range(0, n, self.tile):
            rows = slice(first, first + self.tile)
            found[rows] = kernel.values(squared_distances(self.points[rows], self.points))
        return found

    def fit(self, kernel: Radial, ridge: float, *, intercept: bool, leave_one_out: bool) -> Regression | None:
        """The regression at these settings; None where the kernel plus the ridge is not positive definite."""
        matrix = self.matrix(kernel)
        return regress(kernel, matrix, self.targets, ridge, intercept=intercept, leave_one_out=leave_one_out)

    def median(self) -> float:
        """The median distance among some five hundred points."""
        few = self.points[:: max(1, len(self.points) // 500)]
        return median_distance(squared_distances(few, few))

    def next_metric(self, regression: Regression) -> Metric | None:
        """The average gradient outer product of a fit over its largest entry; None if the gradients are zero."""
        root, diagonal = self.metric.root, self.metric.matrix.ndim == 1
        outer = gradient_outer_product(
            regression.kernel, self.points, regression.coef, tile=self.tile, squares=self.squares, diagonal=diagonal
        )
        if root is not None:
            outer = outer * root.square() if diagonal else root @ outer @ root.T
        largest = float(outer.max())
        return Metric.of(outer / largest) if largest > 0 and not _constant(self.targets) else None


def tiling(n: int, d: int, outputs: int, memory: int) -> tuple[int, bool]:
    """Rows of a tile, and whether all squared distances are held, within `memory` bytes; refused if the kernel does not fit."""
    if n > LAPACK_ROWS:
        raise UsageError(
            f"got {n} training points; expected at most {LAPACK_ROWS}: the kernel of all of them is factorised. Fit on a"
            " sample of the points"
        )
    row = 8 * (5 * n + (outputs + 2) * d)
    least = 8 * (2 * n * n + 3 * n * d + 4 * d * d) + row
    if least > memory:
        raise over_budget(
            memory, least, f"for the kernel of {n} training points", "raise memory= or fit on fewer points"
        )
    held = least + 8 * n * n + min(n, TILE) * row <= memory
    left = memory - least - (8 * n * n if held else 0)
    return max(1, min(TILE, n, 1 + int(left // row))), held


def _constant(targets: Tensor) -> bool:
    """Whether nothing but rounding varies: gradients of the fit would be rounding too."""
    spread = (targets - targets.mean(0)).abs().max()
    return float(spread) <= 1e-13 * float(targets.abs().max())

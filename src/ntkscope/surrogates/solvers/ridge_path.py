"""Kernel ridge regression at every strength of a grid, with its exact leave-one-out error, from one eigendecomposition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import Gram
from ntkscope.linalg.solvers.system import EIGENVECTORS, symmetric_part

EVEN = 1e-12  # errors that differ by less than this, relative to the smallest, are equal: the stronger ridge wins
MOST = 1 << 22  # residuals made at a time: 32 MiB


@dataclass(frozen=True, eq=False)
class RidgePath:
    """`f(x) = b + κ(x, X) c` minimising `Σ (y_i - f(x_i))² + α cᵀKc`, b free, for each α of `alphas`, ascending.

    Then `Σ c = 0` and `(H K H + α I) c = H y`, with H subtracting the mean. `values` and `vectors` are the eigenpairs of H K H,
    the vectors' own means subtracted. `errors` are mean squared leave-one-out residuals over all points and outputs, infinite
    where H K H + α I is not safely positive definite (rounding to single precision makes small eigenvalues negative).
    """

    alphas: Float64[Tensor, " a"]
    errors: Float64[Tensor, " a"]
    values: Float64[Tensor, " n"]
    vectors: Float64[Tensor, "n n"]
    targets: Float64[Tensor, "n k"]

    @property
    def best(self) -> int:
        """The place of the strength with the smallest error; of equal ones the largest."""
        lowest = self.errors.min()
        return int((self.errors <= lowest * (1 + EVEN)).nonzero().amax())

    @property
    def edge(self) -> str:
        """ "smallest" or "largest" if the best strength is an end of those that can be used and the choice matters, else ""."""
        usable = self.errors[self.errors.isfinite()]
        if float(usable.max() - usable.min()) <= EVEN * float(usable.max()):
            return ""
        first = len(self.errors) - len(usable)
        return {first: "smallest", len(self.errors) - 1: "largest"}.get(self.best, "")

    def solution(self, place: int) -> Float64[Tensor, "n k"]:
        """The coefficients c at `alphas[place]`; O(n² k)."""
        return self._shrunk(self._weights(slice(place, place + 1)))[:, 0] / self.alphas[place]

    def residuals(self, places: slice) -> Float64[Tensor, "n a k"]:
        """`y_i - f^{-i}(x_i) = c_i / P_ii` at `alphas[places]`, c = P y and f^{-i} fitted without point i; O(n² a k)."""
        weights = self._weights(places)
        return self._shrunk(weights) / (self.vectors.square() @ weights)[:, :, None]  # α P y / α P_ii

    def _weights(self, places: slice) -> Float64[Tensor, "n a"]:
        return self.alphas[places] / (self.values[:, None] + self.alphas[places])

    def _shrunk(self, weights: Float64[Tensor, "n a"]) -> Float64[Tensor, "n a k"]:
        """`α P y`, `P = H (H K H + α I)⁻¹ H`."""
        coordinates = weights[:, :, None] * (self.vectors.T @ self.targets)[:, None, :]
        return (self.vectors @ coordinates.flatten(1)).view_as(coordinates)


def ridge_path(K: Gram, targets: Float64[Tensor, "n k"], alphas: Float64[Tensor, " a"]) -> RidgePath:
    """The path over `alphas` > 0, ascending, for at least two points; O(n³) once and O(n² k) per strength, in float64.

    The leave-one-out residual of a linear smoother: Allen (1974); with a free intercept: Cawley & Talbot (2004).

    >>> from ntkscope.linalg import as_gram
    >>> K, y = as_gram(3.0 * torch.eye(3)), torch.tensor([[4.0], [8.0], [0.0]], dtype=torch.float64)
    >>> path = ridge_path(K, y, torch.tensor([1.0, 100.0], dtype=torch.float64))
    >>> path.residuals(slice(1))[:, 0, 0].round(decimals=9).tolist()  # 4 - (8 + 0) / 2, …
    [0.0, 6.0, -6.0]
    """
    n = len(targets)
    if n < 2:
        raise UsageError(
            f"got n_samples = {n}; expected at least 2 training points: leave-one-out needs one to fit and one to predict"
        )
    matrix = symmetric_part(K, torch.float64, largest=EIGENVECTORS)
    matrix -= matrix.mean(0, keepdim=True)
    matrix -= matrix.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(matrix)
    vectors = vectors - vectors.mean(0)
    path = RidgePath(alphas, torch.full_like(alphas, torch.inf), values, vectors, targets - targets.mean(0))
    unusable = int((alphas < -2 * values[0]).sum())
    if unusable == len(alphas):
        raise NumericalError(
            f"{K!r}, centred, has the eigenvalue {float(values[0]):.3g}, and its largest is {float(values[-1]):.3g}; expected a"
            f" kernel, positive semidefinite up to rounding: no ridge up to {float(alphas[-1]):.3g} makes it definite"
        )
    step = max(1, MOST // targets.numel())
    for at in range(unusable, len(alphas), step):
        places = slice(at, at + step)
        path.errors[places] = path.residuals(places).square().mean((0, 2))
    return path

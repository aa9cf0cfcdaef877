"""Kernel ridge regression at every strength of a grid, with its exact leave-one-out error, from one decomposition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import Gram
from ntkscope.linalg.solvers.system import EIGENVECTORS, symmetric_part
from ntkscope.linalg.spectra.block_tridiagonal import BlockTridiagonal, block_tridiagonal

EVEN = 1e-12  # errors that differ by less than this, relative to the smallest, are equal: the stronger ridge wins


@dataclass(frozen=True, eq=False)
class RidgePath:
    """`f(x) = b + κ(x, X) c` minimising `Σ (y_i - f(x_i))² + α cᵀKc`, b free, for each α of `alphas`, ascending.

    Then `Σ c = 0` and `c = P y`, `P = H (H K H + α I)⁻¹ H`, with H subtracting the mean. `form` is K between an orthonormal
    basis of the vectors whose sum is 0. `errors` are mean squared leave-one-out residuals over all points and outputs, infinite
    where H K H + α I is not safely positive definite (rounding to single precision makes small eigenvalues negative).
    """

    alphas: Float64[Tensor, " a"]
    errors: Float64[Tensor, " a"]
    form: BlockTridiagonal
    targets: Float64[Tensor, "n k"]

    @cached_property
    def inside(self) -> Float64[Tensor, "j k"]:
        """The targets in the basis of `form`."""
        return self.form.basis @ self.targets

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
        """The coefficients c at `alphas[place]`; O(n²)."""
        return self.form.inverse(float(self.alphas[place]), self.inside)[0]

    def residuals(self, place: int) -> Float64[Tensor, "n k"]:
        """`y_i - f^{-i}(x_i) = c_i / P_ii` at `alphas[place]`, f^{-i} fitted without point i; O(n²)."""
        solution, diagonal = self.form.inverse(float(self.alphas[place]), self.inside)
        return solution / diagonal[:, None]


def ridge_path(K: Gram, targets: Float64[Tensor, "n k"], alphas: Float64[Tensor, " a"]) -> RidgePath:
    """The path over `alphas` > 0, ascending, for at least two points; O(n³) once and O(n²) per strength, in float64.

    The leave-one-out residual of a linear smoother: Allen (1974); with a free intercept: Cawley & Talbot (2004).

    >>> from ntkscope.linalg import as_gram
    >>> K, y = as_gram(3.0 * torch.eye(3)), torch.tensor([[4.0], [8.0], [0.0]], dtype=torch.float64)
    >>> path = ridge_path(K, y, torch.tensor([1.0, 100.0], dtype=torch.float64))
    >>> path.residuals(0)[:, 0].round(decimals=9).tolist()  # 4 - (8 + 0) / 2, …
    [0.0, 6.0, -6.0]
    """
    n = len(targets)
    if n < 2:
        raise UsageError(
            f"got n_samples = {n}; expected at least 2 training points: leave-one-out needs one to fit and one to predict"
        )
    matrix = symmetric_part(K, torch.float64, largest=EIGENVECTORS)
    form = _centred(matrix)
    errors = torch.full_like(alphas, torch.inf)
    path = RidgePath(alphas, errors, form, targets - targets.mean(0))
    first = next((place for place, alpha in enumerate(alphas.tolist()) if form.factors(alpha / 2)), None)
    if first is None:
        values = torch.linalg.eigvalsh(form.dense())
        raise NumericalError(
            f"{K!r}, centred, has the eigenvalue {float(values[0]):.3g}, and its largest is {float(values[-1]):.3g}; expected a"
            f" kernel, positive semidefinite up to rounding: no ridge up to {float(alphas[-1]):.3g} makes it definite"
        )
    for place in range(first, len(alphas)):
        errors[place] = path.residuals(place).square().mean()
    return path


def _centred(matrix: Float64[Tensor, "n n"]) -> BlockTridiagonal:
    """The form of a symmetric matrix, which is overwritten, between vectors whose sum is 0.

    The reflection `I - v vᵀ/v_0` turns the vector of equal numbers into the first axis, which is left out.
    """
    v = matrix.new_full((len(matrix),), len(matrix) ** -0.5)
    v[0] += 1
    image = matrix @ v / v[0]
    w = image - v * (v @ image) / (2 * v[0])
    matrix -= torch.outer(v, w)
    matrix -= torch.outer(w, v)
    form = block_tridiagonal(matrix[1:, 1:])
    basis = torch.cat([torch.zeros_like(form.basis[:, :1]), form.basis], 1)
    basis -= torch.outer(form.basis @ v[1:] / v[0], v)
    return replace(form, basis=basis)

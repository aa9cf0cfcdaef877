"""Singular values of a matrix, all of them, and singular vectors of the largest, as many as are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.linalg import LinAlgError, blas, eigh_tridiagonal, lapack
from torch import Tensor

Vectors: TypeAlias = tuple[Float[Tensor, "m k"], Float[Tensor, "n k"]]
PANEL = 8  # columns that LAPACK reduces together: its own 32 are too many for matrices of a few hundred
SEVEN_DIGITS = 1e-4  # of the largest: a value's square has lost eight digits of sixteen there
SINGLY = 4  # vectors up to which reflections are applied one by one


def singular_values(matrix: Float[Tensor, "m n"]) -> Float[Tensor, " p"]:
    """All singular values, descending, each to seven digits; O(m n p) with p the smaller side.

    By the smaller Gram, several times as fast as `svdvals`; that one where a value is so small that the Gram would lose it.

    >>> singular_values(torch.tensor([[3.0, 0.0], [4.0, 0.0]], dtype=torch.float64)).tolist()
    [5.0, 0.0]
    """
    unit = matrix.abs().max()
    if matrix.device.type == "cpu" and matrix.dtype == torch.float64 and float(unit) > 0:
        values = SingularParts.of(matrix / unit).values * unit
        if float(values[-1]) >= SEVEN_DIGITS * float(values[0]):
            return values
    return torch.linalg.svdvals(matrix)


@dataclass(eq=False)
class SingularParts:
    """Singular values of `matrix`, descending, by the smaller Gram: the large ones, asked for here, have all their digits.

    On the CPU the Gram is reduced to a tridiagonal matrix; a vector is computed when it is asked for, O(p²) with p the smaller
    side. Elsewhere all of them come at once.
    """

    matrix: Float[Tensor, "m n"]
    values: Float[Tensor, " p"]
    _basis: Tridiagonal | Float[Tensor, "p p"]
    _known: Vectors | None = field(default=None, init=False)

    @classmethod
    def of(cls, matrix: Float[Tensor, "m n"]) -> SingularParts:
        if matrix.device.type == "cpu" and matrix.dtype == torch.float64 and min(matrix.shape) > 1:
            try:
                reduced = Tridiagonal.of(matrix.detach().contiguous().numpy())
                squares = torch.from_numpy(reduced.eigenvalues())
                return cls(matrix, squares.flip(0).clamp_min(0).sqrt(), reduced)
            except LinAlgError:  # not converged: the other way may
                pass
        squares, vectors = _decomposed(matrix)
        return cls(matrix, squares.clamp_min(0).sqrt(), vectors)

    def vectors(self, count: int) -> Vectors:
        """Left (m, count) and right (n, count) singular vectors of the `count` largest values, as columns."""
        known = 0 if self._known is None else self._known[0].shape[1]
        if self._known is None or known < count:
            wanted = max(1, count, 2 * known)  # who asks again will ask for more
            self._known = self._leading(min(len(self.values), wanted))
        left, right = self._known
        return left[:, :count], right[:, :count]

    def _leading(self, count: int) -> Vectors:
        wide = _wide(self.matrix)
        if isinstance(self._basis, Tridiagonal):
            try:
                vectors = torch.from_numpy(self._basis.leading(count))
            except LinAlgError:
                vectors = _decomposed(self.matrix)[1][:, :count]
        else:
            vectors = self._basis[:, :count]
        others = (self.matrix.T if wide else self.matrix) @ vectors / self.values[:count].clamp_min(1e-300)
        return (vectors, others) if wide else (others, vectors)


def _decomposed(matrix: Float[Tensor, "m n"]) -> tuple[Float[Tensor, " p"], Float[Tensor, "p p"]]:
    """Eigenvalues and vectors of the smaller Gram, descending, all of them."""
    squares, vectors = torch.linalg.eigh(matrix @ matrix.T if _wide(matrix) else matrix.T @ matrix)
    return squares.flip(0), vectors.flip(1)


def _wide(matrix: Tensor) -> bool:
    return matrix.shape[0] <= matrix.shape[1]


@dataclass(frozen=True, eq=False)
class Tridiagonal:
    """The smaller Gram of a matrix as `Q T Qᵀ`: T tridiagonal, Q a product of reflections, kept as LAPACK has them."""

    diagonal: Float64[np.ndarray, " p"]
    beside: Float64[np.ndarray, " p-1"]
    reflections: Float64[np.ndarray, "p p"]
    factors: Float64[np.ndarray, " p-1"]

    @classmethod
    def of(cls, matrix: Float64[np.ndarray, "m n"]) -> Tridiagonal:
        rows, columns = matrix.shape
        side = min(rows, columns)
        gram = blas.dsyrk(1.0, matrix.T, trans=rows <= columns, lower=1)
        reflections, diagonal, beside, factors, info = lapack.dsytrd(gram, lower=1, lwork=PANEL * side, overwrite_a=1)
        if info:
            raise LinAlgError(f"dsytrd: {info}")
        return cls(diagonal, beside, reflections, factors)

    def eigenvalues(self) -> Float64[np.ndarray, " p"]:
        """All, ascending."""
        values, info = lapack.dsterf(self.diagonal, self.beside)
        if info:
            raise LinAlgError(f"dsterf: {info}")
        return np.asarray(values)

    def leading(self, count: int) -> Float64[np.ndarray, "p k"]:
        """Eigenvectors of the `count` largest eigenvalues, largest first, as columns."""
        side = len(self.diagonal)
        _, inner = eigh_tridiagonal(
            self.diagonal, self.beside, select="i", select_range=(side - count, side - 1), lapack_driver="stemr"
        )
        vectors = inner[:, ::-1].copy(order="F")
        # The reflections lie below the diagonal; from their first entry on, the same memory is a matrix of one column less.
        below = self.reflections.ravel(order="F")[1 : 1 + side * (side - 1)].reshape((side, side - 1), order="F")
        width = count if count <= SINGLY else PANEL * count
        vectors[1:], _, info = lapack.dormqr("L", "N", below, self.factors, vectors[1:], width)
        if info:
            raise LinAlgError(f"dormqr: {info}")
        return vectors

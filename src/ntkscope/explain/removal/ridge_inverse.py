"""`(K + α I)⁻¹`: formed where it fits, else by conjugate gradients, with its diagonal estimated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.linalg import Gram, conjugate_gradient, nystrom
from ntkscope.linalg.solvers.system import symmetric_part
from ntkscope.linalg.spectra.band import lapack_is_safe
from ntkscope.linalg.spectra.block_lanczos import block_eigenpairs

RANK, PROBES, COLUMNS = 256, 64, 512
RTOL = 1e-10  # of a solution, where kernels are used through products


class Inverse(ABC):
    """What influence needs of `G = (K + α I)⁻¹`."""

    @abstractmethod
    def solve(self, columns: Float64[Tensor, "n k"]) -> Float64[Tensor, "n k"]:
        """`G columns`."""

    @abstractmethod
    def block(self, points: Int64[Tensor, " s"]) -> Float64[Tensor, "s s"]:
        """The part of G between some points."""

    @property
    @abstractmethod
    def diagonal(self) -> Float64[Tensor, " n"]:
        """The diagonal of G."""

    @property
    @abstractmethod
    def diagonal_error(self) -> float:
        """The largest standard error of the diagonal, relative to it; 0 where it is exact."""


def inverse_of(gram: Gram, alpha: float) -> Inverse:
    """`(K + α I)⁻¹`: exact and formed up to 20,000 rows if memory allows, O(n³); beyond that by products `K @ v` alone."""
    return Formed.of(gram, alpha) if lapack_is_safe(gram.shape[0], gram.device) else Iterated(gram, alpha)


@final
@dataclass(frozen=True, eq=False)
class Formed(Inverse):
    """The inverse as a matrix, in float64."""

    matrix: Float64[Tensor, "n n"]

    @classmethod
    def of(cls, gram: Gram, alpha: float) -> Formed:
        matrix = symmetric_part(gram, torch.float64)
        matrix.diagonal().add_(alpha)
        factor, failed_at = torch.linalg.cholesky_ex(matrix)
        if int(failed_at):
            raise NumericalError(
                f"{gram!r} with alpha={alpha:.3g} on its diagonal is not positive definite, so it is not a kernel; raise alpha,"
                " or repair it first with ns.linalg.nearest_psd"
            )
        del matrix
        return cls(torch.cholesky_inverse(factor))

    @property
    def diagonal(self) -> Float64[Tensor, " n"]:
        return self.matrix.diagonal()

    @property
    def diagonal_error(self) -> float:
        return 0.0

    def solve(self, columns: Float64[Tensor, "n k"]) -> Float64[Tensor, "n k"]:
        return self.matrix @ columns

    def block(self, points: Int64[Tensor, " s"]) -> Float64[Tensor, "s s"]:
        return self.matrix[points][:, points]


@final
class Iterated(Inverse):
    """The inverse by conjugate gradients; its diagonal from leading eigenpairs and, for the rest, random probes."""

    def __init__(self, gram: Gram, alpha: float) -> None:
        self.gram, self.alpha = gram, alpha
        self.helper = nystrom(gram, alpha, rank=min(RANK, gram.shape[0]))

    def solve(self, columns: Float64[Tensor, "n k"]) -> Float64[Tensor, "n k"]:
        parts = [
            conjugate_gradient(self.gram, part, self.alpha, self.helper, RTOL).solution
            for part in columns.split(COLUMNS, 1)
        ]
        return torch.cat(parts, 1) if parts else columns

    def block(self, points: Int64[Tensor, " s"]) -> Float64[Tensor, "s s"]:
        units = torch.zeros(self.gram.shape[0], len(points), dtype=torch.float64, device=self.gram.device)
        units[points, torch.arange(len(points), device=units.device)] = 1.0
        found = self.solve(units)[points]
        return (found + found.T) / 2

    @property
    def diagonal(self) -> Float64[Tensor, " n"]:
        return self._estimated[0]

    @property
    def diagonal_error(self) -> float:
        return self._estimated[1]

    @cached_property
    def _estimated(self) -> tuple[Float64[Tensor, " n"], float]:
        """`G = U ((Λ + α)⁻¹ - α⁻¹) Uᵀ + α⁻¹ I + rest`, `diag(rest) ≈ mean of z ∘ (rest z)` over signs z.

        Clamped to what holds of any kernel: `1 / (K_ii + α) ≤ G_ii ≤ 1 / α`.
        """
        gram, alpha, n = self.gram, self.alpha, self.gram.shape[0]
        pairs = block_eigenpairs(gram, min(RANK, max(1, n // 2)), max_passes=12)
        vectors, values = pairs.vectors.to(torch.float64), pairs.values.to(torch.float64).clamp_min(0)
        gap = 1 / (values + alpha) - 1 / alpha
        known = vectors.square() @ gap + 1 / alpha
        signs = torch.randint(0, 2, (n, PROBES), generator=generator(0, "inverse diagonal")).to(gram.device) * 2.0 - 1
        signs = signs.to(torch.float64)
        rest = self.solve(signs) - vectors @ (gap[:, None] * (vectors.T @ signs)) - signs / alpha
        samples = signs * rest
        lowest = 1 / (gram.diagonal().to(torch.float64) + alpha)
        diagonal = (known + samples.mean(1)).clamp(lowest, torch.full_like(lowest, 1 / alpha))
        return diagonal, float((samples.std(1) / PROBES**0.5 / diagonal).amax())


def strength_of(alpha: float | int | None, default: float) -> float:
    """A ridge strength: the given one, positive, or the default."""
    chosen = default if alpha is None else float(alpha)
    if not 0 < chosen < float("inf"):
        raise UsageError(
            f"got alpha={chosen}; expected a finite number above 0"
            + (": the kernel's mean diagonal is not" if alpha is None else "")
        )
    return chosen

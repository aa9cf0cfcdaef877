"""Factored random projections of a matrix: row k is `(u_k ⊗ v_k) / √dim`, so `φ_k = u_kᵀ G v_k / √dim` with random signs.

For `G = Σ_s b_s a_sᵀ` that is `Σ_s (u_k·b_s)(v_k·a_s) / √dim`: G is never formed. The expected inner product is exact. With
normal factors the variance would be

    (‖G‖²‖H‖² + ⟨G,H⟩² + 2‖G Hᵀ‖² + 2‖Gᵀ H‖² + 2 tr(Gᵀ H Gᵀ H)) / dim,

which is that of a dense projection plus terms that are small when G and H have many comparable singular values: 8/dim of
‖G‖⁴ instead of 2/dim for G = H of rank one, and 2/dim in the limit of high rank. Signs leave out some of the diagonal terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkscope.core import derive_seed
from ntkscope.linalg.sketches.sketch import signs


@dataclass(frozen=True)
class KroneckerSketch:
    """The factored projection of the matrix `name` of shape (height, width).

    >>> sketch = KroneckerSketch(0, "w", 3, 5, dim=128)
    >>> bool((sketch.matrix().abs() == 128**-0.5).all())
    True
    """

    seed: int
    name: str
    height: int
    width: int
    dim: int

    @property
    def scale(self) -> float:
        """What the products of factors are multiplied by in the projection."""
        return self.dim**-0.5

    def rows(
        self, chosen: Int[Tensor, " rows"], columns: slice, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "rows columns"]:
        """The factor of the first axis, ±1: chosen rows, columns from a multiple of 64 on."""
        return signs(self._key("rows"), chosen, columns.start, columns.stop, 1, dtype)

    def columns(
        self, chosen: Int[Tensor, " rows"], columns: slice, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "rows columns"]:
        """The factor of the second axis."""
        return signs(self._key("columns"), chosen, columns.start, columns.stop, 1, dtype)

    def pieces(self, width: int) -> Iterator[slice]:
        """The columns in pieces of about `width`, each from a multiple of 64 on."""
        step = max(64, width // 64 * 64)
        return (slice(at, min(self.dim, at + step)) for at in range(0, self.dim, step))

    def matrix(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "numbers dim"]:
        """The projection as a dense matrix, for inspecting small ones."""
        whole = slice(0, self.dim)
        left, right = (
            self.rows(torch.arange(self.height), whole, dtype),
            self.columns(torch.arange(self.width), whole, dtype),
        )
        return (left[:, None] * right[None]).flatten(0, 1) * self.scale

    def _key(self, side: str) -> int:
        return derive_seed(self.seed, "kronecker projection", self.name, side)

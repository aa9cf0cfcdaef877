"""A Gram plus a correction of low rank, which leaves the Gram where it is: on disk, in features, behind an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.linalg.gram import Gram, Index, Tile, symmetric_eigenvalues


@final
class CorrectedGram(Gram):
    """`diag(s) (K + L diag(w) Rᵀ) diag(t)`, K any Gram, L (n, r), R (m, r); without R symmetric as K is, and R is L.

    Products cost one product with K and O((n + m) r). The scales s and t are ones but in a normalised Gram.

    >>> from ntkscope.linalg import as_gram
    >>> K = CorrectedGram(as_gram(torch.eye(2).double()), torch.ones(2, 1).double(), torch.tensor([0.5]).double())
    >>> K.dense()
    tensor([[1.5000, 0.5000],
            [0.5000, 1.5000]], dtype=torch.float64)
    """

    def __init__(
        self,
        base: Gram,
        left: Tensor,
        weights: Tensor,
        right: Tensor | None = None,
        *,
        scales: tuple[Tensor, Tensor] | None = None,
        symmetric: bool | None = None,
        name: str = "",
        rows: str = "samples",
        outputs: int = 1,
        row_diagonal: Tensor | None = None,
        column_diagonal: Tensor | None = None,
        coverage: Any | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if symmetric is None:
            symmetric = base.symmetric and right is None
        right = left if right is None else right
        rank = len(weights)
        if left.shape != (base.shape[0], rank) or right.shape != (base.shape[1], rank):
            raise UsageError(
                f"a correction of {base!r} by shapes {tuple(left.shape)}, ({rank},), {tuple(right.shape)} came; expected"
                f" ({base.shape[0]}, r), (r,) and ({base.shape[1]}, r)"
            )
        left, weights, right = (v.detach().to(base.device) for v in (left, weights, right))
        if symmetric and row_diagonal is None and base._cheap_diagonal:
            row_diagonal = _diagonal(base, left, weights, scales)
        super().__init__(
            base.shape,
            base.dtype,
            base.device,
            symmetric=symmetric,
            name=name,
            rows=rows,
            outputs=outputs,
            row_diagonal=row_diagonal,
            column_diagonal=column_diagonal,
            coverage=coverage,
            meta=meta,
        )
        self.base = base
        self._left, self._weights, self._right = left, weights, right
        self._scales = scales
        self._out_of_core = base.out_of_core

    def _piece(self, tile: Tensor, rows: slice, columns: slice) -> Tensor:
        """A tile of the base, corrected, in this Gram's dtype; added in the wider of the two."""
        values = tile + (self._left[rows] * self._weights) @ self._right[columns].T
        if self._scales is not None:
            values = values * torch.outer(self._scales[0][rows], self._scales[1][columns])
        return self._with_diagonal(values.to(self.dtype), rows, columns)

    def _form(self) -> Tensor:
        n, m = self.shape
        values = self._piece(self.base.dense(), slice(0, n), slice(0, m))
        return self._with_diagonal((values + values.T) / 2, slice(0, n), slice(0, m)) if self.symmetric else values

    def _matmul(self, v: Tensor) -> Tensor:
        wide = torch.promote_types(self._left.dtype, v.dtype)
        left, right = (None, None) if self._scales is None else (s.to(wide)[:, None] for s in self._scales)
        inside = v.to(wide) if right is None else right * v.to(wide)
        out = self.base @ inside
        out = out + self._left.to(wide) @ (self._weights.to(wide)[:, None] * (self._right.to(wide).T @ inside))
        out = out if left is None else left * out
        return out.to(torch.promote_types(self.dtype, v.dtype))

    def _diagonal(self) -> Tensor:
        return _diagonal(self.base, self._left, self._weights, self._scales)

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        for rows, columns, tile in self.base.tiles(size):
            yield rows, columns, self._piece(tile, rows, columns)

    def _transposed(self) -> Gram:
        scales = None if self._scales is None else self._scales[::-1]
        return CorrectedGram(
            self.base.T, self._right, self._weights, self._left, scales=scales, **self._swapped_labels()
        )

    def _select(self, rows: Index, columns: Index, labels: dict[str, Any]) -> Gram:
        scales = None if self._scales is None else (self._scales[0][rows], self._scales[1][columns])
        return CorrectedGram(
            self.base[rows, columns], self._left[rows], self._weights, self._right[columns], scales=scales, **labels
        )

    def _normalized(self, rows: Tensor, columns: Tensor) -> Gram:
        if self._scales is not None:
            rows, columns = rows * self._scales[0], columns * self._scales[1]
        return self._like(scales=(rows, columns), **self._unit_labels())

    def _eigenvalues(self) -> Tensor:
        return symmetric_eigenvalues(self._form())

    def _moved(self, dtype: torch.dtype, device: torch.device, labels: dict[str, Any]) -> Gram:
        scales = None if self._scales is None else (self._scales[0].to(device), self._scales[1].to(device))
        return self._like(base=self.base.to(dtype, device), scales=scales, **labels)

    def _like(self, base: Gram | None = None, **changes: Any) -> CorrectedGram:
        return CorrectedGram(base or self.base, self._left, self._weights, self._right, **changes)


def _diagonal(base: Gram, left: Tensor, weights: Tensor, scales: tuple[Tensor, Tensor] | None) -> Tensor:
    values = base.diagonal() + (left.square() * weights).sum(1)
    return (values if scales is None else values * scales[0].square()).to(base.dtype)

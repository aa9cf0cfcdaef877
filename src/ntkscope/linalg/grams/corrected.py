"""A Gram plus a correction of low rank, which leaves the Gram where it is: on disk, in features, behind an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack, final

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.linalg.grams.gram import Gram, Tile
from ntkscope.linalg.grams.labels import NONE, Labels, LabelWords
from ntkscope.linalg.grams.view import View


@final
class CorrectedGram(Gram):
    """`diag(s) (K + L diag(w) Rᵀ) diag(t)`, K any Gram, L (n, r), R (m, r); without R symmetric as K is, and R is L.

    Products cost one product with K and O((n + m) r). The scales s and t are ones except in a normalised Gram.

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
        labels: Labels = NONE,
        view: View | None = None,
        **words: Unpack[LabelWords],
    ) -> None:
        """`view`: s and t, as its scales."""
        labels = labels.but(**words)
        if labels.symmetric is None:
            labels = labels.but(symmetric=base.symmetric and right is None)
        right = left if right is None else right
        rank = len(weights)
        if left.shape != (base.shape[0], rank) or right.shape != (base.shape[1], rank):
            raise UsageError(
                f"got a correction of {base!r} by shapes {tuple(left.shape)}, ({rank},), {tuple(right.shape)}; expected"
                f" ({base.shape[0]}, r), (r,) and ({base.shape[1]}, r)"
            )
        self.base = base
        self._left, self._weights, self._right = (v.detach().to(base.device) for v in (left, weights, right))
        self._out_of_core = base.out_of_core
        if labels.symmetric and labels.row_diagonal is None and base._cheap_diagonal:
            labels = labels.but(row_diagonal=self._diagonal())
        super().__init__(base.shape, base.dtype, base.device, labels, view)

    def _piece(self, tile: Tensor, rows: slice, columns: slice) -> Tensor:
        """A tile of the base, corrected, in this Gram's dtype; added in the wider of the two."""
        values = tile + (self._left[rows] * self._weights) @ self._right[columns].T
        factors = self._view.factors(rows, columns, torch.float64)
        values = values if factors is None else values * factors
        return self._with_diagonal(values.to(self.dtype), rows, columns)

    def _form(self) -> Tensor:
        n, m = self.shape
        return self._symmetrised(self._piece(self.base.dense(), slice(0, n), slice(0, m)))

    def _matmul(self, v: Tensor) -> Tensor:
        wide = torch.promote_types(self._left.dtype, v.dtype)
        inside = self._view.columns.spread(v.to(wide))
        out = self.base @ inside
        out = out + self._left.to(wide) @ (self._weights.to(wide)[:, None] * (self._right.to(wide).T @ inside))
        return self._view.rows.apply(out).to(torch.promote_types(self.dtype, v.dtype))

    def _diagonal(self) -> Tensor:  # one with scales was told its diagonal
        return (self.base.diagonal() + (self._left.square() * self._weights).sum(1)).to(self.base.dtype)

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        for rows, columns, tile in self.base.tiles(size):
            yield rows, columns, self._piece(tile, rows, columns)

    def _seen(self, view: View, labels: Labels) -> Gram:
        """Rows and columns are chosen from the base and the correction, which stays small; scales are kept."""
        base = self.base.T if view.transposed else self.base
        rows, columns = (slice(None) if side.chosen is None else side.chosen for side in (view.rows, view.columns))
        if view.rows.chosen is not None or view.columns.chosen is not None:
            base = base[rows, columns]
        left, right = view.sources(self._left, self._right)
        scales = view.scales_only()
        return CorrectedGram(base, left[rows], self._weights, right[columns], labels=labels, view=scales)

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Gram:
        base, labels = self.base.to(dtype, device), self.labels.moved(dtype, device)
        return CorrectedGram(base, self._left, self._weights, self._right, labels=labels, view=self._view.to(device))

"""A Gram known only by what it does to vectors, such as a product of Jacobians by jvp and vjp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, TypeAlias, Unpack, final

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.linalg.grams.gram import Gram, Tile, slices
from ntkscope.linalg.grams.labels import NONE, Labels, LabelWords
from ntkscope.linalg.grams.view import View

Multiply: TypeAlias = Callable[[Tensor], Tensor]
PANEL = 256  # columns of the identity applied at a time


@final
class OperatorGram(Gram):
    """A kernel matrix behind `matmul`: (m, k) → (n, k), and `rmatmul`: (n, k) → (m, k) for its transpose.

    Both take and return tensors of `dtype` on `device`. Whatever needs entries (`dense`, `tiles`, and `diagonal` where it
    was not given) applies the operator to the identity, a panel of columns at a time: m products in all.

    Examples:
        >>> K = OperatorGram((2, 2), lambda v: 3 * v, symmetric=True)
        >>> K @ torch.tensor([1.0, 2.0])
        tensor([3., 6.])
        >>> K.dense()
        tensor([[3., 0.],
                [0., 3.]])
    """

    _cheap_diagonal: ClassVar[bool] = False

    def __init__(
        self,
        shape: tuple[int, int],
        matmul: Multiply,
        rmatmul: Multiply | None = None,
        diagonal: Tensor | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        labels: Labels = NONE,
        **words: Unpack[LabelWords],
    ) -> None:
        labels = labels.but(**words)
        if diagonal is not None and not labels.symmetric:
            raise UsageError("got diagonal= for a cross kernel; expected row_diagonal= and column_diagonal=")
        if diagonal is not None:
            labels = labels.but(row_diagonal=diagonal)
        self._multiply = matmul
        self._multiply_transposed = matmul if labels.symmetric and rmatmul is None else rmatmul
        self._given_in = dtype, torch.device(device)  # what the functions take and return, wherever this Gram moves
        super().__init__(shape, dtype, torch.device(device), labels)

    def _matmul(self, v: Tensor) -> Tensor:
        return self._call(v.to(self.dtype)).to(torch.promote_types(self.dtype, v.dtype))

    def _call(self, v: Tensor) -> Tensor:
        """`K v` in this Gram's dtype: the function applied to vectors for the whole matrix, and what the view shows of it."""
        rows, columns, transposed = self._view.rows, self._view.columns, self._view.transposed
        multiply = self._multiply_transposed if transposed else self._multiply
        assert multiply is not None
        dtype, device = self._given_in
        result = multiply(columns.spread(v).to(device, dtype))
        if result.shape != (rows.size, v.shape[1]):
            raise UsageError(
                f"the {'r' * transposed}matmul of {self!r} gave shape {tuple(result.shape)} for vectors of shape"
                f" {(columns.size, v.shape[1])}; expected {(rows.size, v.shape[1])}"
            )
        return rows.apply(result.to(self.device, self.dtype))

    def _panels(self, step: int) -> Iterator[tuple[slice, Tensor]]:
        for columns in slices(self.shape[1], step):
            unit = torch.zeros(self.shape[1], columns.stop - columns.start, dtype=self.dtype, device=self.device)
            unit[columns].fill_diagonal_(1.0)
            yield columns, self._call(unit)

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        for columns, panel in self._panels(size or PANEL):
            for rows in slices(self.shape[0], size or max(1, self.shape[0])):
                yield rows, columns, self._with_diagonal(panel[rows], rows, columns)

    def _seen(self, view: View, labels: Labels) -> Gram:
        if view.transposed and self._multiply_transposed is None:
            raise UsageError(f"the transpose of {self!r} is not known; pass rmatmul= when creating the Gram")
        return self._copy(_view=view, shape=view.shape, labels=labels.checked(view.shape))

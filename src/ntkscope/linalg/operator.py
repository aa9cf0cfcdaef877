"""A Gram known only by what it does to vectors, such as a product of Jacobians by jvp and vjp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias, final

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.linalg.gram import Gram, Index, Tile, slices, symmetric_eigenvalues

Multiply: TypeAlias = Callable[[Tensor], Tensor]
PANEL = 256  # columns of the identity applied at a time


@final
class OperatorGram(Gram):
    """A kernel matrix behind `matmul`: (m, k) → (n, k), and `rmatmul`: (n, k) → (m, k) for its transpose.

    Both get and give tensors of `dtype` on `device`. Whatever needs entries (`dense`, `tiles`, and `diagonal` where it
    was not given) applies the operator to the identity, a panel of columns at a time: m products in all.

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
        symmetric: bool = False,
        name: str = "",
        rows: str = "samples",
        outputs: int = 1,
        row_diagonal: Tensor | None = None,
        column_diagonal: Tensor | None = None,
        coverage: Any | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if diagonal is not None and not symmetric:
            raise UsageError("diagonal= came for a cross kernel; expected row_diagonal= and column_diagonal=")
        super().__init__(
            shape,
            dtype,
            torch.device(device),
            symmetric=symmetric,
            name=name,
            rows=rows,
            outputs=outputs,
            row_diagonal=diagonal if diagonal is not None else row_diagonal,
            column_diagonal=column_diagonal,
            coverage=coverage,
            meta=meta,
        )
        self._multiply = matmul
        self._multiply_transposed = matmul if symmetric and rmatmul is None else rmatmul

    def _matmul(self, v: Tensor) -> Tensor:
        return self._call(v.to(self.dtype)).to(torch.promote_types(self.dtype, v.dtype))

    def _call(self, v: Tensor) -> Tensor:
        result = self._multiply(v)
        if result.shape != (self.shape[0], v.shape[1]):
            raise UsageError(
                f"the matmul of {self!r} gave shape {tuple(result.shape)} for vectors of shape {tuple(v.shape)};"
                f" expected {(self.shape[0], v.shape[1])}"
            )
        return result

    def _panels(self, step: int) -> Iterator[tuple[slice, Tensor]]:
        for columns in slices(self.shape[1], step):
            unit = torch.zeros(self.shape[1], columns.stop - columns.start, dtype=self.dtype, device=self.device)
            unit[columns].fill_diagonal_(1.0)
            yield columns, self._call(unit)

    def _form(self) -> Tensor:
        values = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for columns, panel in self._panels(PANEL):
            values[:, columns] = panel
        if self.symmetric:
            values = self._with_diagonal((values + values.T) / 2, slice(0, self.shape[0]), slice(0, self.shape[0]))
        return values

    def _diagonal(self) -> Tensor:
        parts = [panel[columns].diagonal() for columns, panel in self._panels(PANEL)]
        return torch.cat([torch.zeros(0, dtype=self.dtype, device=self.device), *parts])

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        for columns, panel in self._panels(size or PANEL):
            for rows in slices(self.shape[0], size or max(1, self.shape[0])):
                yield rows, columns, self._with_diagonal(panel[rows], rows, columns)

    def _transposed(self) -> Gram:
        if self._multiply_transposed is None:
            raise UsageError(f"the transpose of {self!r} is not known; pass rmatmul= where the Gram is made")
        shape = (self.shape[1], self.shape[0])
        return OperatorGram(
            shape, self._multiply_transposed, self._multiply, **self._places(), **self._swapped_labels()
        )

    def _places(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.device}

    def _select(self, rows: Index, columns: Index, labels: dict[str, Any]) -> Gram:
        n, m = self.shape
        sizes = tuple(len(torch.arange(s, device=self.device)[i]) for s, i in ((n, rows), (m, columns)))

        def between(multiply: Multiply, into: int, give: Index, take: Index) -> Multiply:
            def apply(v: Tensor) -> Tensor:
                full = v.new_zeros(into, v.shape[1])
                numbers = torch.arange(into, device=self.device)[give]
                return multiply(full.index_add_(0, numbers, v))[take]

            return apply

        transposed = self._multiply_transposed
        return OperatorGram(
            (sizes[0], sizes[1]),
            between(self._multiply, m, columns, rows),
            None if transposed is None else between(transposed, n, rows, columns),
            **self._places(),
            **labels,
        )

    def _normalized(self, rows: Tensor, columns: Tensor) -> Gram:
        left, right = rows.to(self.dtype)[:, None], columns.to(self.dtype)[:, None]
        multiply, transposed = self._multiply, self._multiply_transposed
        return OperatorGram(
            self.shape,
            lambda v: left * multiply(right * v),
            None if transposed is None else lambda v: right * transposed(left * v),
            **self._places(),
            **self._unit_labels(),
        )

    def _eigenvalues(self) -> Tensor:
        return symmetric_eigenvalues(self._form())

    def _moved(self, dtype: torch.dtype, device: torch.device, labels: dict[str, Any]) -> Gram:
        def converted(multiply: Multiply) -> Multiply:
            return lambda v: multiply(v.to(self.device, self.dtype)).to(device, dtype)

        transposed = self._multiply_transposed
        return OperatorGram(
            self.shape,
            converted(self._multiply),
            None if transposed is None else converted(transposed),
            dtype=dtype,
            device=device,
            **labels,
        )

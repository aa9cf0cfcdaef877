"""A Gram whose numbers are all in memory, and the conversion of plain arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack, final

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import instance, tensor_of
from ntkscope.linalg.grams.gram import Gram, Tile, slices
from ntkscope.linalg.grams.labels import NONE, Labels, LabelWords
from ntkscope.linalg.grams.mixed import product
from ntkscope.linalg.grams.view import View


@final
class DenseGram(Gram):
    """A kernel matrix held as one tensor.

    Examples:
        >>> K = DenseGram(torch.tensor([[4.0, 2.0], [2.0, 9.0]]), symmetric=True, name="linear")
        >>> K
        DenseGram('linear', 2 × 2 symmetric, rows: samples, float32)
        >>> K @ torch.tensor([1.0, 1.0])
        tensor([ 6., 11.])
        >>> K.normalized().dense().diagonal()
        tensor([1., 1.])
    """

    def __init__(self, values: Tensor, *, labels: Labels = NONE, **words: Unpack[LabelWords]) -> None:
        instance(values, "values", Tensor, "a tensor: as_gram takes arrays and lists")
        if values.ndim != 2:
            raise UsageError(f"got values of shape {tuple(values.shape)}, expected a matrix (n, m)")
        labels = labels.but(**words)
        if labels.symmetric:
            labels = labels.but(row_diagonal=None)  # it has its own
        self._values = values
        super().__init__((values.shape[0], values.shape[1]), values.dtype, values.device, labels)

    @property
    def held(self) -> Tensor:
        """The matrix, which is in memory: for checks that are cheap when nothing has to be formed."""
        return self._values

    def _form(self) -> Tensor:
        return self._values

    def _matmul(self, v: Tensor) -> Tensor:
        return product(self._values, v)

    def _diagonal(self) -> Tensor:
        return self._values.diagonal()

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        n, m = self.shape
        for rows in slices(n, size or n or 1):
            for columns in slices(m, size or m or 1):
                yield rows, columns, self._values[rows, columns]

    def _seen(self, view: View, labels: Labels) -> Gram:
        values = view.select(self._values)
        everything = slice(None)
        factors = view.factors(everything, everything, self.dtype)
        if factors is not None:
            values = factors.mul_(values)
            if labels.symmetric and labels.row_diagonal is not None:
                values.diagonal().copy_(labels.row_diagonal)
        return DenseGram(values, labels=labels)

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Gram:
        return DenseGram(self._values.to(device, dtype), labels=self.labels.moved(dtype, device))


def as_gram(values: Any, *, symmetric: bool | None = None, **labels: Any) -> Gram:
    """A Gram from an array, a tensor or a list of rows: finite, two-dimensional, and symmetric if `symmetric=True` requires it.

    `symmetric=None` detects it: a square array equal to its transpose up to rounding is taken as symmetric. Of a symmetric
    one the symmetric part is kept, so that it is exactly so. A Gram is returned as it is, after the same check.
    O(nm).

    Examples:
        >>> as_gram([[1.0, 0.0], [0.0, 1.0]])
        DenseGram(2 × 2 symmetric, rows: samples, float64)
        >>> as_gram([[1.0, 2.0], [3.0, 4.0]], symmetric=True)
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.UsageError: a matrix that is not symmetric: ...
    """
    if isinstance(values, Gram):
        if symmetric and not values.symmetric:
            raise UsageError(
                f"got {values!r}; expected a symmetric Gram (its two sides the same inputs): compute the"
                " kernel with x2=None, or make the Gram with symmetric=True"
            )
        return values
    matrix = tensor_of(values, "a matrix", 2, keep=True, empty=True)
    if isinstance(values, Tensor) and values.is_floating_point():
        matrix = values  # with its graph
    if matrix.dtype.itemsize < 4:
        matrix = matrix.float()  # what is derived from it, as a normalised one, would round to three digits
    if symmetric is not False:
        asymmetry, allowed = _asymmetry(matrix)
        if symmetric and asymmetry > allowed:
            raise UsageError(
                f"a matrix that is not symmetric: shape {tuple(matrix.shape)}, largest |K - Kᵀ| is {asymmetry:.3g}, but"
                f" rounding explains only {allowed:.3g}; expected a kernel of inputs with themselves (to accept its"
                " symmetric part, pass (K + K.T) / 2)"
            )
        symmetric = asymmetry <= allowed
        if symmetric and asymmetry > 0:
            matrix = (matrix + matrix.T) / 2
    return DenseGram(matrix, symmetric=symmetric, **labels)


def _asymmetry(matrix: Tensor) -> tuple[float, float]:
    """The largest `|K - Kᵀ|`, infinite when it is not square, and what half the digits of its dtype would explain."""
    if matrix.shape[0] != matrix.shape[1]:
        return float("inf"), 0.0
    if not matrix.numel():
        return 0.0, 0.0
    step = max(1, (1 << 22) // len(matrix))
    gaps = [float((matrix[i] - matrix[:, i].T).abs().max()) for i in slices(len(matrix), step)]
    return max(gaps), torch.finfo(matrix.dtype).eps ** 0.5 * max(-float(matrix.min()), float(matrix.max()))

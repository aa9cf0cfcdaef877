"""A kernel between training inputs (n, n) and of test inputs with them (m, n): the input of a surrogate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.linalg import DenseGram, Gram


@dataclass(frozen=True, eq=False)
class KernelPair:
    """The Grams of one kernel; `seconds` is the time both took to compute, `how` the kernel's options.

    `scale` is the number both were divided by.

    Examples:
        >>> pair = KernelPair("linear", DenseGram(torch.eye(2) * 4, symmetric=True), DenseGram(torch.tensor([[2.0, 0.0]])))
        >>> pair.scaled().test.dense().tolist(), pair.scaled().scale, pair.nbytes
        ([[0.5, 0.0]], 4.0, 24)
    """

    name: str
    train: Gram
    test: Gram
    seconds: float = 0.0
    scale: float = 1.0
    how: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.train.symmetric or self.test.shape[1] != self.train.shape[0]:
            raise UsageError(
                f"got {self.train!r} and {self.test!r} for the kernel {self.name!r}; expected a symmetric one (n, n) of the"
                " training inputs, and (m, n) of test inputs with them"
            )

    @property
    def nbytes(self) -> int:
        """How many bytes both matrices take when formed."""
        return sum(gram.shape[0] * gram.shape[1] * gram.dtype.itemsize for gram in (self.train, self.test))

    def normalized(self, name: str, *, dtype: torch.dtype | None = None, zeros: bool = False) -> KernelPair:
        """The kernel `name` of cosines `K(x, x') / √(K(x, x) K(x', x'))`, computed in `dtype`, by default the kernel's own.

        With `zeros=True` an input with `K(x, x) = 0`, on which no parameter has an effect, keeps its row of zeros, with 1
        on the diagonal; otherwise it has no angle with other inputs, which is an error.
        """
        sides = (self.train, self.test)
        if dtype is not None:
            sides = (self.train.to(dtype), self.test.to(dtype))
        if zeros:
            sides = (_positive(sides[0]), _positive(sides[1]))
        return replace(self, name=name, train=sides[0].normalized(), test=sides[1].normalized())

    def scaled(self) -> KernelPair:
        """Divided by the mean of the training diagonal, so that one ridge strength means the same for every kernel.

        Both matrices are formed: a fit multiplies by them hundreds of times.
        """
        mean = float(self.train.diagonal().double().mean())
        scale = mean if mean > 0 else 1.0
        train, test = (_divided(gram, scale) for gram in (self.train, self.test))
        return replace(self, train=train, test=test, scale=self.scale * scale)

    def take(self, rows: Any, columns: Any = None) -> KernelPair:
        """The kernel of some training inputs, `rows`, and of some test inputs with them, `columns` (by default all)."""
        test = slice(None) if columns is None else columns
        return replace(self, train=self.train[rows, rows], test=self.test[test, rows])

    def to(self, dtype: torch.dtype) -> KernelPair:
        """The same in another dtype."""
        return replace(self, train=self.train.to(dtype), test=self.test.to(dtype))


def _divided(gram: Gram, scale: float) -> Gram:
    def over(diagonal: Tensor | None) -> Tensor | None:
        return None if diagonal is None else diagonal / scale

    return DenseGram(
        gram.dense() if scale == 1.0 else gram.dense() / scale,
        symmetric=gram.symmetric,
        name=gram.name,
        row_diagonal=over(gram.row_diagonal),
        column_diagonal=over(gram.column_diagonal),
    )


def _positive(gram: Gram) -> Gram:
    """The same numbers, with 1 for every `K(x, x)` that is 0."""
    known = [diagonal for diagonal in (gram.row_diagonal, gram.column_diagonal) if diagonal is not None]
    if all(bool((diagonal > 0).all()) for diagonal in known):
        return gram
    if gram.symmetric:  # its diagonal is in the matrix
        values = gram.dense().clone()
        own = values.diagonal()
        own[own == 0] = 1.0
        return DenseGram(values, symmetric=True, name=gram.name)
    rows, columns = (None if diagonal is None else torch.where(diagonal == 0, 1.0, diagonal)
                     for diagonal in (gram.row_diagonal, gram.column_diagonal))  # fmt: skip
    return DenseGram(gram.dense(), name=gram.name, row_diagonal=rows, column_diagonal=columns)

"""A Gram held by its features: `Φ₁ Φ₂ᵀ`, not formed unless requested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack, final

import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import in_range
from ntkscope.linalg.grams.gram import Gram, Tile, slices, symmetric_eigenvalues
from ntkscope.linalg.grams.labels import NONE, Labels, LabelWords
from ntkscope.linalg.grams.mixed import product, transposed_product
from ntkscope.linalg.grams.view import View
from ntkscope.linalg.sketches.batch_means import standard_errors

TILE = 1024


@final
class FactoredGram(Gram):
    """The kernel `k(x, x') = φ(x)·φ(x')` of features `left` (n, p) and `right` (m, p); without `right`, symmetric.

    `K @ v` costs O((n + m) p), the diagonals O((n + m) p), all eigenvalues O(min(n, p)² max(n, p)); only `dense()`,
    `numpy()` and `blocks()` form the n × m product, and `tiles()` one tile of it at a time. `groups`: the features are a
    random sketch whose columns k, k + groups, k + 2 groups, … are as good as those of any other k, so that entries have
    a standard error.

    Examples:
        >>> K = FactoredGram(torch.tensor([[3.0], [4.0]]))
        >>> K.dense()
        tensor([[ 9., 12.],
                [12., 16.]])
        >>> K.eigvalsh()
        tensor([ 0., 25.], dtype=torch.float64)
    """

    def __init__(
        self,
        left: Tensor,
        right: Tensor | None = None,
        *,
        groups: int = 1,
        labels: Labels = NONE,
        **words: Unpack[LabelWords],
    ) -> None:
        labels = labels.but(**words)
        if not isinstance(left, Tensor) or not left.is_floating_point():
            raise UsageError(
                f"got features of type {getattr(left, 'dtype', type(left))}; expected a floating-point tensor"
            )
        if labels.symmetric and right is not None:
            raise UsageError("got symmetric=True with two sets of features; leave `right` out")
        symmetric = right is None and labels.symmetric is not False
        right = left if right is None else right
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise UsageError(
                f"got features of shapes {tuple(left.shape)} and {tuple(right.shape)}; expected (n, p) and (m, p)"
            )
        if left.dtype != right.dtype or left.device != right.device:
            raise UsageError(
                f"got features in {left.dtype} on {left.device} and {right.dtype} on {right.device}; expected one"
                " dtype and one device"
            )
        if groups < 1 or left.shape[1] % groups:
            raise UsageError(f"got groups={groups} for {left.shape[1]} features; expected a divisor of their number")
        self.left: Tensor = left
        self.right: Tensor = right
        self.groups: int = groups
        self._diagonals_given: bool = labels.row_diagonal is not None
        if labels.row_diagonal is None:
            labels = labels.but(row_diagonal=_squared_norms(left))
        if labels.column_diagonal is None and not symmetric:
            labels = labels.but(column_diagonal=_squared_norms(right))
        super().__init__((len(left), len(right)), left.dtype, left.device, labels.but(symmetric=symmetric))

    def standard_error(self, rows: Any = None, columns: Any = None) -> Float[Tensor, "n m"]:
        """The standard error of every entry, or of chosen rows and columns, from the groups of the sketch; O(nmp).

        Entry ± t · error covers the exact kernel about as often as stated, with t the quantile of Student's distribution
        with `groups - 1` degrees of freedom (see `confidence_interval`). Cosines by the delta method; see
        `linalg.batch_means`.
        """
        if self.groups < 2:
            raise UsageError(
                f"standard errors of {self!r}: its features are not a sketch in groups; expected a projected kernel whose"
                " dim has a divisor from 2 to 16"
            )
        part = self if rows is None and columns is None else self[_all(rows), _all(columns)]
        assert isinstance(part, FactoredGram)
        cosines = bool(self.meta.get("normalized", False))
        found = standard_errors(part.left, part.right, self.groups, cosines=cosines)
        if part.symmetric and cosines:
            found.fill_diagonal_(0)  # cosines with themselves are 1
        return found

    def confidence_interval(
        self, level: float | int = 0.95, rows: Any = None, columns: Any = None
    ) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """The ends of the interval that covers an entry of the exact kernel with probability `level`, in float64."""
        if not 0 < level < 1:
            raise UsageError(f"got level={level}; expected a probability between 0 and 1")
        error = self.standard_error(rows, columns) * float(student.ppf((1 + level) / 2, self.groups - 1))
        values = (self if rows is None and columns is None else self[_all(rows), _all(columns)]).dense().double()
        return values - error, values + error

    def _form(self) -> Tensor:
        return self._symmetrised(self.left @ self.right.T)

    def _matmul(self, v: Tensor) -> Tensor:
        return product(self.left, transposed_product(self.right, v))

    def _tiles(self, size: int | None) -> Iterator[Tile]:
        n, m = self.shape
        for rows in slices(n, size or TILE):
            for columns in slices(m, size or TILE):
                yield rows, columns, self._with_diagonal(self.left[rows] @ self.right[columns].T, rows, columns)

    def _seen(self, view: View, labels: Labels) -> Gram:
        left, right = view.sources(self.left, self.right)
        other = None if labels.symmetric else view.columns.apply(right)
        return FactoredGram(view.rows.apply(left), other, groups=self.groups, labels=labels)

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Gram:
        right = None if self.symmetric else self.right.to(device, dtype)
        labels = self.labels.moved(dtype, device)
        if not self._diagonals_given:  # recomputed, to the digits of the new dtype
            labels = labels.but(row_diagonal=None, column_diagonal=None)
        return FactoredGram(self.left.to(device, dtype), right, groups=self.groups, labels=labels)

    def _decomposed_rows(self) -> int:
        return min(self.left.shape)

    def _eigenvalues(self) -> Tensor:
        n, p = self.left.shape
        if n <= p:
            return symmetric_eigenvalues(_self_product(self.left))
        nonzero = symmetric_eigenvalues(_self_product(self.left.T))
        return torch.cat([nonzero, nonzero.new_zeros(n - p)]).sort().values


def _all(chosen: Any) -> Any:
    return slice(None) if chosen is None else chosen


def _squared_norms(features: Tensor) -> Tensor:
    """`‖φ(x_i)‖²`, accumulated in float64."""
    squares = torch.linalg.vector_norm(features, dim=1, dtype=torch.float64).square().to(features.dtype)
    lost = squares.isinf() | (squares == 0)
    if bool(lost.any()):
        in_range(features[lost], "features")
    return squares


def _self_product(a: Tensor) -> Tensor:
    """`a aᵀ` in float64 by pieces of the long side."""
    total = torch.zeros(a.shape[0], a.shape[0], dtype=torch.float64, device=a.device)
    for columns in slices(a.shape[1], max(1, (1 << 22) // max(1, a.shape[0]))):
        part = a[:, columns].detach().to(torch.float64)
        total += part @ part.T
    return total

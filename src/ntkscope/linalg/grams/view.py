"""`View`: which rows and columns of a matrix are seen, by what each is multiplied, and whether it is transposed.

`K[rows, columns]`, `K.T` and `K.normalized()` are views. A kind of Gram that holds little (a function, files) keeps one and
applies it whenever numbers are read; one that holds the numbers themselves applies it once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError

Index: TypeAlias = slice | Tensor  # a slice with a positive step, or a 1-D tensor of int64


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a view: of `size` rows (columns) the `chosen` ones, each multiplied by its `scale`."""

    size: int
    chosen: Index | None = None  # None: all, in order
    scale: Tensor | None = None  # float64; None: ones

    def __len__(self) -> int:
        if isinstance(self.chosen, slice):
            return len(range(*self.chosen.indices(self.size)))
        return self.size if self.chosen is None else len(self.chosen)

    def numbers(self, device: torch.device | str = "cpu") -> Tensor:
        """Which of the rows (columns) are seen."""
        if isinstance(self.chosen, Tensor):
            return self.chosen.to(device)
        return torch.arange(self.size, device=device)[slice(None) if self.chosen is None else self.chosen]

    def take(self, index: Index) -> Side:
        """The side of a sub-matrix of what is seen."""
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self
        device = next((i.device for i in (index, self.chosen) if isinstance(i, Tensor)), "cpu")
        chosen = index if self.chosen is None else self.numbers(device)[index]
        return replace(self, chosen=chosen, scale=None if self.scale is None else self.scale[index])

    def scaled(self, factors: Float[Tensor, " n"]) -> Side:
        """The side of a matrix whose rows (columns) are multiplied by `factors` as well."""
        return replace(self, scale=factors if self.scale is None else self.scale * factors)

    def to(self, device: torch.device | str) -> Side:
        """The same on another device."""
        chosen = self.chosen.to(device) if isinstance(self.chosen, Tensor) else self.chosen
        return replace(self, chosen=chosen, scale=None if self.scale is None else self.scale.to(device))

    def select(self, rows: Tensor) -> Tensor:
        """The chosen ones among all `rows`, unscaled."""
        return rows if self.chosen is None else rows[self.chosen]

    def apply(self, rows: Float[Tensor, "size k"]) -> Float[Tensor, "n k"]:
        """The chosen ones among all `rows`, each times its scale."""
        rows = self.select(rows)
        return rows if self.scale is None else rows * self.scale.to(rows.dtype)[:, None]

    def spread(self, v: Float[Tensor, "n k"]) -> Float[Tensor, "size k"]:
        """The transpose of `apply`: vectors for all rows that do what `v` does for those seen."""
        v = v if self.scale is None else v * self.scale.to(v.dtype)[:, None]
        if self.chosen is None:
            return v
        return v.new_zeros(self.size, v.shape[1]).index_add_(0, self.numbers(v.device), v)

    def parts(self, step: int, within: slice | None = None) -> dict[int, tuple[Index, Index]]:
        """For each piece of `step` rows that the entries `within` come from: those entries, and where in the piece they are.

        >>> Side(5).parts(3)
        {0: (slice(0, 3, None), slice(0, 3, None)), 1: (slice(3, 5, None), slice(0, 2, None))}
        """
        within = within or slice(0, len(self))
        if within.start >= within.stop:
            return {}
        if self.chosen is None:
            spans: dict[int, tuple[Index, Index]] = {}
            for k in range(within.start // step, -(-within.stop // step)):
                first, last = max(within.start, k * step), min(within.stop, (k + 1) * step)
                spans[k] = slice(first, last), slice(first - k * step, last - k * step)
            return spans
        numbers = self.numbers()[within]
        pieces = numbers // step
        order = torch.argsort(pieces, stable=True)
        kinds, counts = torch.unique_consecutive(pieces[order], return_counts=True)
        groups = zip(kinds.tolist(), order.split(counts.tolist()))
        return {k: (group + within.start, numbers[group] - k * step) for k, group in groups}


@dataclass(frozen=True, eq=False)
class View:
    """What is seen of a matrix B: `diag(s) B[rows, columns] diag(t)`, of Bᵀ where `transposed`.

    >>> seen = View.whole((3, 2)).transpose().take(slice(1, 2), slice(0, 3))
    >>> seen.shape, seen.transposed
    ((1, 3), True)
    """

    rows: Side
    columns: Side
    transposed: bool = False

    @classmethod
    def whole(cls, shape: tuple[int, int]) -> View:
        """All of a matrix, as it is."""
        return cls(Side(shape[0]), Side(shape[1]))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)

    def transpose(self) -> View:
        """The view of the transpose of what is seen."""
        return View(self.columns, self.rows, not self.transposed)

    def take(self, rows: Index, columns: Index) -> View:
        """The view of a sub-matrix of what is seen."""
        return replace(self, rows=self.rows.take(rows), columns=self.columns.take(columns))

    def scaled(self, rows: Tensor, columns: Tensor) -> View:
        """The view of what is seen with its rows and columns multiplied by these."""
        return replace(self, rows=self.rows.scaled(rows), columns=self.columns.scaled(columns))

    def scales_only(self) -> View:
        """The scales of this view, of a matrix that is already transposed and chosen from."""
        return View(Side(len(self.rows), scale=self.rows.scale), Side(len(self.columns), scale=self.columns.scale))

    def to(self, device: torch.device | str) -> View:
        """The same on another device."""
        return replace(self, rows=self.rows.to(device), columns=self.columns.to(device))

    def sources(self, left: Any, right: Any) -> tuple[Any, Any]:
        """What the rows and what the columns are seen of, `left` and `right` being the matrix's own."""
        return (right, left) if self.transposed else (left, right)

    def select(self, matrix: Float[Tensor, "n m"]) -> Float[Tensor, "p q"]:
        """What is seen of a matrix, unscaled; a view of its memory where both choices are slices."""
        chosen = self.rows.select(matrix.T if self.transposed else matrix)
        return chosen if self.columns.chosen is None else chosen[:, self.columns.chosen]

    def factors(self, rows: Index, columns: Index, dtype: torch.dtype) -> Float[Tensor, "p q"] | None:
        """What the entries of a rectangle of what is seen are multiplied by: the products of their two scales, formed first,
        so that K_ij and K_ji meet the same number. None: ones."""
        if self.rows.scale is None or self.columns.scale is None:
            return None
        return torch.outer(self.rows.scale[rows].to(dtype), self.columns.scale[columns].to(dtype))


def as_index(chosen: Any, size: int, device: torch.device) -> Index:
    """A slice or a 1-D int64 tensor from anything that selects rows; an error if out of range."""
    if isinstance(chosen, slice):
        if chosen.step is None or chosen.step > 0:
            return chosen
        chosen = range(*chosen.indices(size))
    if isinstance(chosen, int | np.integer | str | tuple) or chosen is None:
        raise UsageError(
            f"{chosen!r} cannot choose rows of a Gram; expected slices, integer arrays or masks, as in K[rows, columns]"
            " (one row: K[[i]]; one number: K.dense()[i, j])"
        )
    index = torch.as_tensor(np.asarray(chosen) if not isinstance(chosen, Tensor) else chosen, device=device)
    if index.ndim == 2 and 1 in index.shape:  # np.ix_ makes (n, 1) and (1, m)
        index = index.flatten()
    if index.dtype == torch.bool and index.shape == (size,):
        return index.nonzero().flatten()
    if index.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device=device)
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise UsageError(
            f"got rows chosen by {index.dtype} of shape {tuple(index.shape)}; expected 1-D integers or a mask of {size}"
        )
    if int(index.max()) >= size or int(index.min()) < -size:
        raise UsageError(f"got row {int(index.max())} or {int(index.min())} of a side with {size}")
    return index.to(torch.int64) % size


def whole_samples(numbers: Tensor, outputs: int) -> bool:
    """Whether chosen row numbers are whole samples, all outputs of each in their order."""
    if outputs == 1:
        return True
    if len(numbers) % outputs:
        return False
    grouped = numbers.reshape(-1, outputs)
    expected = grouped[:, :1] + torch.arange(outputs, device=numbers.device)
    return bool((grouped == expected).all()) and bool((grouped[:, 0] % outputs == 0).all())


def inverse_norms(diagonal: Tensor | None, side: str, gram: str) -> Tensor:
    """1/sqrt of a diagonal, in float64; an error names the rows where it does not exist. `gram`: whose it is, in words."""
    if diagonal is None:
        raise UsageError(
            f"normalizing {gram} needs k(x, x) of both sides, but its {side}_diagonal is not known;"
            f" pass {side}_diagonal= when creating the Gram"
        )
    wide = diagonal.detach().to(torch.float64)
    least = torch.finfo(diagonal.dtype).tiny if diagonal.is_floating_point() else 0.0  # smaller ones lose digits
    bad = (~((wide > 0) & (wide >= least)) | ~torch.isfinite(wide)).nonzero().flatten().tolist()
    if bad:
        more = f" and {len(bad) - 10} more" if len(bad) > 10 else ""
        raise NumericalError(
            f"normalizing {gram}: k(x, x) is not positive and finite at {side}s {bad[:10]}{more}"
            f" (first value {float(wide[bad[0]])!r}; {diagonal.dtype} holds numbers from {least:.0e} on); drop those inputs,"
            " use dtype=torch.float64, or use the unnormalized kernel"
        )
    return wide.rsqrt()

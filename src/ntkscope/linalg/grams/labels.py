"""`Labels`: the metadata of a Gram, frozen, and handed from each Gram to those derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.linalg.grams.view import Index


class LabelWords(TypedDict, total=False):
    """The labels as keyword arguments, which every kind of Gram takes."""

    symmetric: bool | None
    name: str
    rows: str
    outputs: int
    row_diagonal: Tensor | None
    column_diagonal: Tensor | None
    coverage: Any
    meta: Mapping[str, Any] | None


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a Gram.

    `symmetric`: both sides are the same inputs; None leaves it to the kind of Gram. `outputs`: 1, or c when row `i*c + k` is
    output k of sample i, which `rows` says in words. `row_diagonal` and `column_diagonal`: `k(x, x)` of either side, where
    known. `coverage` and `meta` come from whoever computed the kernel and are carried along; `meta` is
    read-only.

    >>> Labels(name="trntk", meta={"seed": 3}).but(name="pntk").meta["seed"]
    3
    """

    symmetric: bool | None = None
    name: str = ""
    rows: str = "samples"
    outputs: int = 1
    row_diagonal: Tensor | None = None
    column_diagonal: Tensor | None = None
    coverage: Any | None = None
    meta: Mapping[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta or {})))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"meta": dict(self.meta or {})}  # a mapping proxy does not pickle

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"meta": MappingProxyType(state["meta"])})

    def but(self, **changes: Unpack[LabelWords]) -> Labels:
        """These labels with some of them changed."""
        return replace(self, **changes) if changes else self

    def noting(self, **entries: Any) -> Labels:
        """These labels with more entries of `meta`."""
        return replace(self, meta={**(self.meta or {}), **entries})

    def checked(self, shape: tuple[int, int]) -> Labels:
        """The labels of a matrix of this shape, with every field filled in; an error if they do not fit."""
        n, m = shape
        if self.symmetric and n != m:
            raise UsageError(f"got a symmetric Gram of shape {(n, m)}; expected a square one, or symmetric=False")
        if self.outputs < 1 or n % self.outputs or m % self.outputs:
            raise UsageError(
                f"got outputs={self.outputs} for a Gram of shape {(n, m)}; expected a divisor of both sides, since row"
                " i*outputs + k is output k of sample i"
            )
        for side, diagonal, size in (("row", self.row_diagonal, n), ("column", self.column_diagonal, m)):
            if diagonal is not None and diagonal.shape != (size,):
                raise UsageError(f"got {side}_diagonal of shape {tuple(diagonal.shape)}, expected ({size},)")
        return self.but(
            symmetric=bool(self.symmetric),
            column_diagonal=self.row_diagonal if self.symmetric else self.column_diagonal,
        )

    def swapped(self) -> Labels:
        """The labels of the transpose."""
        return self.but(row_diagonal=self.column_diagonal, column_diagonal=self.row_diagonal)

    def chosen(self, rows: Index, columns: Index, *, symmetric: bool, whole: bool) -> Labels:
        """The labels of a sub-matrix; `whole`: it has all outputs of the samples it has."""
        return self.but(
            symmetric=symmetric,
            outputs=self.outputs if whole else 1,
            rows=self.rows if whole else f"chosen rows of {self.rows}",
            row_diagonal=None if self.row_diagonal is None else self.row_diagonal[rows],
            column_diagonal=None if self.column_diagonal is None else self.column_diagonal[columns],
        )

    def scaled(self, rows: Tensor, columns: Tensor) -> Labels:
        """The labels of `diag(rows) K diag(columns)`."""
        diagonals = (self.row_diagonal, rows), (self.column_diagonal, columns)
        row, column = (None if d is None else (d * scale.square()).to(d.dtype) for d, scale in diagonals)
        return self.but(row_diagonal=row, column_diagonal=column)

    def moved(self, dtype: torch.dtype, device: torch.device) -> Labels:
        """The labels in another dtype or place."""
        row, column = (None if d is None else d.to(device, dtype) for d in (self.row_diagonal, self.column_diagonal))
        return self.but(row_diagonal=row, column_diagonal=column)


NONE = Labels()
"""Labels that say nothing."""

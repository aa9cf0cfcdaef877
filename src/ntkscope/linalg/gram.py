"""`Gram`: a kernel matrix between two sets of inputs, formed, factored or known only by what it does to vectors.

It is the narrow waist of the package: kernels make one, nearly everything after them consumes one, mostly through
`K @ v`. A new way of holding a kernel (tiles on disk, a remote array) is one new file with one final subclass that
writes the underscored methods at the end of this class, and one test class that inherits `GramContract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Certificate, NumericalError, UsageError
from ntkscope.linalg.band import band_eigenvalues, lapack_is_safe
from ntkscope.linalg.lanczos import top_eigenpairs

Index: TypeAlias = slice | Tensor  # as the subclasses get it: a slice with a positive step, or a 1-D tensor of int64
Tile: TypeAlias = tuple[slice, slice, Tensor]
Vectors = TypeVar("Vectors", Tensor, np.ndarray)


class Gram(ABC):
    """The matrix `K_ij = k(x_i, x'_j)`, of shape `(n, m)`, with what its rows are and where it came from.

    `symmetric`: both sides are the same inputs. `outputs`: 1, or c when row `i*c + k` is output k of sample i. `rows`
    says that in words. `coverage` and `meta` are carried along unchanged from whoever computed it.

    Abstract: `DenseGram`, `FactoredGram`, `OperatorGram`, `TiledGram`, `StoredFeatureGram` and `CorrectedGram` are the final
    classes of this room.
    """

    __array_ufunc__ = None  # so that `ndarray @ gram` asks __rmatmul__ instead of forming the matrix
    __iter__ = None
    _out_of_core: bool = False
    _cheap_diagonal: ClassVar[bool] = True

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        *,
        symmetric: bool = False,
        name: str = "",
        rows: str = "samples",
        outputs: int = 1,
        row_diagonal: Tensor | None = None,
        column_diagonal: Tensor | None = None,
        coverage: Any | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        n, m = shape
        if symmetric and n != m:
            raise UsageError(f"a symmetric Gram came with shape {(n, m)}; expected it square, or symmetric=False")
        if outputs < 1 or n % outputs or m % outputs:
            raise UsageError(
                f"a Gram of shape {(n, m)} came with outputs={outputs}; expected a divisor of both sides, since row"
                " i*outputs + k is output k of sample i"
            )
        for side, given, size in (("row", row_diagonal, n), ("column", column_diagonal, m)):
            if given is not None and given.shape != (size,):
                raise UsageError(f"{side}_diagonal came with shape {tuple(given.shape)}; expected ({size},)")
        if not dtype.is_floating_point:
            raise UsageError(f"a Gram came with dtype {dtype}; expected a real floating-point one: convert the values")
        self.shape: tuple[int, int] = (n, m)
        self.dtype: torch.dtype = dtype
        self.device: torch.device = device
        self.symmetric: bool = symmetric
        self.name: str = name
        self.rows: str = rows
        self.outputs: int = outputs
        self.coverage: Any | None = coverage
        self.meta: Mapping[str, Any] = dict(meta or {})
        self._row_diagonal = row_diagonal
        self._column_diagonal = row_diagonal if symmetric else column_diagonal

    @property
    def certificate(self) -> Certificate | None:
        """How what this was computed from was held to plain autograd; None where nothing was checked."""
        kept = self.meta.get("certificate")
        return Certificate.from_json(kept) if isinstance(kept, Mapping) else kept

    # -- what a consumer uses ---------------------------------------------------------------------------------------

    def dense(self) -> Float[Tensor, "n m"]:
        """The whole matrix, formed if it was not; O(nm) memory."""
        return self._form()

    def numpy(self) -> np.ndarray:
        """The whole matrix as a NumPy array."""
        return self.dense().detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.numpy()
        return values.astype(dtype or values.dtype, copy=bool(copy))

    def diagonal(self) -> Float[Tensor, " n"]:
        """`k(x_i, x_i)`; only a symmetric Gram has one."""
        if not self.symmetric:
            raise UsageError(
                f"diagonal of {self!r}: its two sides are different inputs, so its diagonal means nothing;"
                " use row_diagonal / column_diagonal for k(x, x) of each side"
            )
        assert self.row_diagonal is not None
        return self.row_diagonal

    @cached_property
    def row_diagonal(self) -> Float[Tensor, " n"] | None:
        """`k(x_i, x_i)` of the row inputs, or None where nobody said."""
        if self._row_diagonal is None and self.symmetric:
            return self._diagonal()
        return self._row_diagonal

    @cached_property
    def column_diagonal(self) -> Float[Tensor, " m"] | None:
        """`k(x'_j, x'_j)` of the column inputs, or None where nobody said."""
        return self.row_diagonal if self.symmetric else self._column_diagonal

    @property
    def out_of_core(self) -> bool:
        """Whether every product reads the matrix from somewhere slow: then few products of many columns are asked of it."""
        return self._out_of_core

    @property
    def contributions(self) -> Mapping[str, Tensor]:
        """The share of every parameter, where the kernel was asked to keep them (`per_layer=True`)."""
        return self.meta.get("contributions", {})

    def __matmul__(self, v: Vectors) -> Vectors:
        """`K v` for `v` of shape (m,) or (m, k), as the kind of array it came, in the wider of the two dtypes."""
        if isinstance(v, np.ndarray):
            return self._apply(from_numpy(v).to(self.device)).detach().cpu().numpy()
        if not isinstance(v, Tensor):
            return NotImplemented
        return self._apply(v)

    def __rmatmul__(self, v: Vectors) -> Vectors:
        """`v K` for `v` of shape (n,) or (k, n)."""
        if not isinstance(v, np.ndarray | Tensor):
            return NotImplemented
        return (self.T @ v.T).T if v.ndim > 1 else self.T @ v

    @property
    def T(self) -> Gram:
        """The transposed Gram; itself when symmetric."""
        return self if self.symmetric else self._transposed()

    def tiles(self, size: int | None = None) -> Iterator[Tile]:
        """`(rows, columns, values)` pieces of at most `size × size` that cover the matrix exactly once.

        Without `size` each kind of Gram takes the shape it is quickest at.
        """
        if size is not None and size < 1:
            raise UsageError(f"tiles of size {size}; expected at least 1")
        return self._tiles(size)

    def normalized(self) -> Gram:
        """`K_ij / sqrt(k(x_i, x_i) k(x'_j, x'_j))`; the diagonal of a symmetric one is exactly 1."""
        rows = _inverse_norms(self.row_diagonal, "row", self)
        columns = rows if self.symmetric else _inverse_norms(self.column_diagonal, "column", self)
        return self._normalized(rows, columns)

    def eigvalsh(self, k: int | None = None) -> Float[Tensor, " e"]:
        """Eigenvalues of the symmetric part, ascending, in float64: all of them, or the `k` largest.

        All: O(n³), by LAPACK up to 20,000 rows and while memory lasts, beyond by `band_eigenvalues`, strip by strip in
        memory or in scratch files: the same numbers to rounding, whatever the size. The k largest: O(k) products `K @ v`
        by Lanczos; of a Gram that is read from disk about ten passes, by block Lanczos. For the shape of a large spectrum
        `spectral_density` is the quick way, with error bars.
        """
        if not self.symmetric:
            raise UsageError(f"eigvalsh of {self!r}: expected a symmetric Gram; for a cross kernel take its svdvals")
        if k is not None and k != self.shape[0]:
            return top_eigenpairs(self, k)[0]
        if lapack_is_safe(self._decomposed_rows(), self.device):
            return self._eigenvalues()
        return band_eigenvalues(self)

    def blocks(self) -> Float[Tensor, "n m c c"]:
        """The matrix as `(n, m, c, c)`: for each pair of samples the kernel between their outputs."""
        c = self.outputs
        return self.dense().reshape(self.shape[0] // c, c, self.shape[1] // c, c).permute(0, 2, 1, 3)

    def __getitem__(self, key: Any) -> Gram:
        """The sub-matrix of the chosen rows and columns (all pairs of them, as with `np.ix_`).

        Each of `rows`, `columns` is a slice, a sequence of integers or a boolean mask; `K[rows]` keeps all columns.
        It stays symmetric when the same choice is made twice, and keeps `outputs` when whole samples are chosen.
        """
        chosen_rows, chosen_columns = key if isinstance(key, tuple) and len(key) == 2 else (key, slice(None))
        n, m = self.shape
        rows, columns = _index(chosen_rows, n, self.device), _index(chosen_columns, m, self.device)
        row_numbers, column_numbers = (torch.arange(s, device=self.device)[i] for s, i in ((n, rows), (m, columns)))
        whole = _whole_samples(row_numbers, self.outputs) and _whole_samples(column_numbers, self.outputs)
        row_diagonal = self.row_diagonal if self._cheap_diagonal else self._row_diagonal
        column_diagonal = self.column_diagonal if self._cheap_diagonal else self._column_diagonal
        labels = self._labels(
            symmetric=self.symmetric and torch.equal(row_numbers, column_numbers),
            outputs=self.outputs if whole else 1,
            rows=self.rows if whole else f"chosen rows of {self.rows}",
            row_diagonal=None if row_diagonal is None else row_diagonal[rows],
            column_diagonal=None if column_diagonal is None else column_diagonal[columns],
        )
        return self._select(rows, columns, labels)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Gram:
        """The same Gram in another dtype or on another device."""
        dtype = self.dtype if dtype is None else dtype
        device = self.device if device is None else torch.device(device)
        if dtype == self.dtype and device == self.device:
            return self
        row_diagonal, column_diagonal = (
            None if d is None else d.to(device, dtype) for d in (self._row_diagonal, self._column_diagonal)
        )
        return self._moved(dtype, device, self._labels(row_diagonal=row_diagonal, column_diagonal=column_diagonal))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        n, m = self.shape
        kind = "symmetric" if self.symmetric else "cross"
        label = f"{self.name!r}, " if self.name else ""
        return f"{type(self).__name__}({label}{n} × {m} {kind}, rows: {self.rows}, {str(self.dtype).split('.')[1]})"

    # -- shared by the subclasses -----------------------------------------------------------------------------------

    def _labels(self, **changes: Any) -> dict[str, Any]:
        """The keyword arguments every subclass's constructor takes, with some of them changed."""
        labels = {
            "symmetric": self.symmetric,
            "name": self.name,
            "rows": self.rows,
            "outputs": self.outputs,
            "row_diagonal": self._row_diagonal,
            "column_diagonal": self._column_diagonal,
            "coverage": self.coverage,
            "meta": self.meta,
        }
        return labels | changes

    def _unit_labels(self) -> dict[str, Any]:
        """The labels of the normalised Gram."""
        ones = [torch.ones(size, dtype=self.dtype, device=self.device) for size in self.shape]
        return self._labels(row_diagonal=ones[0], column_diagonal=ones[1], meta={**self.meta, "normalized": True})

    def _swapped_labels(self) -> dict[str, Any]:
        """The labels of the transposed Gram."""
        return self._labels(row_diagonal=self._column_diagonal, column_diagonal=self._row_diagonal)

    def _with_diagonal(self, values: Tensor, rows: slice, columns: slice) -> Tensor:
        """A fresh tile with the known diagonal written into it: a normalised one is 1 there, not 1 ± rounding."""
        first, last = max(rows.start, columns.start), min(rows.stop, columns.stop)
        if self.symmetric and self._row_diagonal is not None and first < last:
            both = torch.arange(first, last, device=self.device)
            values[both - rows.start, both - columns.start] = self._row_diagonal[both]
        return values

    def _apply(self, v: Tensor) -> Tensor:
        if v.ndim not in (1, 2) or v.shape[0] != self.shape[1]:
            raise UsageError(
                f"{self!r} @ v came with v of shape {tuple(v.shape)}; expected ({self.shape[1]},) or"
                f" ({self.shape[1]}, k)"
            )
        if v.is_complex():
            raise UsageError(f"{self!r} @ v came with {v.dtype}; expected real vectors: take real and imaginary parts")
        if v.device != self.device:
            raise UsageError(f"{self!r} on {self.device} @ v on {v.device}; move one of them with .to(device=…)")
        v = v if v.is_floating_point() else v.to(self.dtype)
        return self._matmul(v) if v.ndim == 2 else self._matmul(v[:, None])[:, 0]

    def _decomposed_rows(self) -> int:
        """The size of the matrix that `_eigenvalues` decomposes."""
        return self.shape[0]

    # -- what a subclass writes -------------------------------------------------------------------------------------

    @abstractmethod
    def _form(self) -> Tensor:
        """The whole matrix; exactly symmetric if `symmetric`."""

    @abstractmethod
    def _matmul(self, v: Tensor) -> Tensor:
        """`K v` for real `v` of shape (m, k), in the wider of the two dtypes."""

    @abstractmethod
    def _diagonal(self) -> Tensor:
        """The diagonal; asked of symmetric Grams only, when none was given."""

    @abstractmethod
    def _tiles(self, size: int | None) -> Iterator[Tile]:
        """The pieces of `tiles`."""

    @abstractmethod
    def _transposed(self) -> Gram:
        """The transpose; asked of cross Grams only. Its labels are `_swapped_labels()`."""

    @abstractmethod
    def _select(self, rows: Index, columns: Index, labels: dict[str, Any]) -> Gram:
        """The sub-matrix, with these labels."""

    @abstractmethod
    def _normalized(self, rows: Tensor, columns: Tensor) -> Gram:
        """`diag(rows) K diag(columns)` with unit diagonal; scales in float64. Its labels are `_unit_labels()`."""

    @abstractmethod
    def _eigenvalues(self) -> Tensor:
        """All eigenvalues of the symmetric part, ascending, in float64; asked of symmetric Grams only."""

    @abstractmethod
    def _moved(self, dtype: torch.dtype, device: torch.device, labels: dict[str, Any]) -> Gram:
        """The same in another dtype or place."""


def slices(size: int, step: int) -> Iterator[slice]:
    """`range(size)` in pieces of at most `step`.

    >>> list(slices(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def symmetric_eigenvalues(matrix: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """Eigenvalues of `(M + Mᵀ)/2`, ascending, in float64; O(n³)."""
    wide = matrix.detach().to(torch.float64, copy=True)
    if not bool(torch.isfinite(wide).all()):
        raise NumericalError(f"the {tuple(matrix.shape)} matrix holds NaN or infinity; it has no eigenvalues")
    for rows in slices(len(wide), 1024):  # in place: LAPACK makes a copy of its own
        lower, upper = wide[rows, : rows.stop], wide[: rows.stop, rows]
        mean = (lower + upper.T) / 2
        lower.copy_(mean)
        upper.copy_(mean.T)
    return torch.linalg.eigvalsh(wide)


def from_numpy(values: np.ndarray) -> Tensor:
    """A tensor sharing the array's memory where torch allows that (it wants it writable, with positive strides)."""
    shareable = values.flags.writeable and all(stride >= 0 for stride in values.strides)
    try:
        return torch.from_numpy(values if shareable else values.copy())
    except TypeError as error:
        raise UsageError(f"an array of dtype {values.dtype} came; expected a real numeric one") from error


def _inverse_norms(diagonal: Tensor | None, side: str, gram: Gram) -> Tensor:
    """1/sqrt of a diagonal, in float64; an error that names the rows where there is none."""
    if diagonal is None:
        raise UsageError(
            f"normalizing {gram!r} needs k(x, x) of both sides, and its {side}_diagonal is not known;"
            f" pass {side}_diagonal= where the Gram is made"
        )
    wide = diagonal.detach().to(torch.float64)
    bad = (~(wide > 0) | ~torch.isfinite(wide)).nonzero().flatten().tolist()
    if bad:
        more = f" and {len(bad) - 10} more" if len(bad) > 10 else ""
        raise NumericalError(
            f"normalizing {gram!r}: k(x, x) is not positive and finite at {side}s {bad[:10]}{more}"
            f" (first value {float(wide[bad[0]])!r}); drop those inputs, or use the unnormalized kernel"
        )
    return wide.rsqrt()


def _index(chosen: Any, size: int, device: torch.device) -> Index:
    """A slice or a 1-D int64 tensor from whatever picks rows; errors for what is out of range."""
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
            f"rows of a Gram chosen by {index.dtype} of shape {tuple(index.shape)}; expected 1-D integers or a mask"
            f" of {size}"
        )
    if int(index.max()) >= size or int(index.min()) < -size:
        raise UsageError(f"row {int(index.max())} or {int(index.min())} chosen of a side with {size}")
    return index.to(torch.int64) % size


def _whole_samples(numbers: Tensor, outputs: int) -> bool:
    """Whether chosen row numbers are whole samples, all outputs of each in their order."""
    if outputs == 1:
        return True
    if len(numbers) % outputs:
        return False
    grouped = numbers.reshape(-1, outputs)
    expected = grouped[:, :1] + torch.arange(outputs, device=numbers.device)
    return bool((grouped == expected).all()) and bool((grouped[:, 0] % outputs == 0).all())

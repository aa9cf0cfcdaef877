"""`Gram`: a kernel matrix between two sets of inputs, formed, factored or known only by what it does to vectors.

It is the narrow waist of the package: kernels make one, nearly everything after them consumes one, mostly through
`K @ v`. A new way of holding a kernel (tiles on disk, a remote array) is one new file with one final subclass that
writes the underscored methods at the end of this class, and one test class that inherits `GramContract`.

A Gram never changes. Its metadata is a `Labels`; sub-matrices, transposes and normalised kernels are a `View` of
what it holds, so that any chain of them equals the same chain on the dense matrix, whatever the kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, NoReturn, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import Certificate, NumericalError, UsageError
from ntkscope.core.arguments import from_numpy
from ntkscope.core.html import heat_map, spectrum, table
from ntkscope.linalg.grams.labels import Labels
from ntkscope.linalg.grams.view import View, as_index, inverse_norms, whole_samples
from ntkscope.linalg.spectra.band import band_eigenvalues, lapack_is_safe
from ntkscope.linalg.spectra.lanczos import top_eigenpairs

Tile: TypeAlias = tuple[slice, slice, Tensor]
Vectors = TypeVar("Vectors", Tensor, np.ndarray)
Kind = TypeVar("Kind", bound="Gram")

PIXELS, DECOMPOSED = 80, 500  # in a notebook: rows of a heat map, rows of a Gram whose eigenvalues are drawn


class Gram(ABC):
    """The matrix `K_ij = k(x_i, x'_j)`, of shape `(n, m)`, with what its rows are and where it came from.

    `symmetric`: both sides are the same inputs. `outputs`: 1, or c when row `i*c + k` is output k of sample i. `rows`
    says that in words. `coverage` and `meta` are passed on unchanged from whoever computed it. No attribute of a Gram can be
    assigned: `with_labels` makes another one of the same numbers.

    Abstract: `DenseGram`, `FactoredGram`, `OperatorGram` and `CorrectedGram` are the final classes of this room, and
    `TiledGram` and `StoredFeatureGram` those of `storage`.

    Examples:
        >>> K = ns.kernel("trntk", model, x)
        >>> K
        DenseGram('trntk', 12 × 12 symmetric, rows: samples, float32)
        >>> K[:2, 3:].shape, (K @ torch.ones(12)).shape, bool(K.eigvalsh().min() > -1e-6)
        ((2, 9), torch.Size([12]), True)
    """

    __array_ufunc__ = None  # so that `ndarray @ gram` calls __rmatmul__ instead of forming the matrix
    __iter__ = None
    _out_of_core: bool = False
    _cheap_diagonal: ClassVar[bool] = True

    def __init__(
        self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device, labels: Labels, view: View | None = None
    ) -> None:
        """`shape`: of the whole matrix, of which `view` is seen. Called last by a subclass: nothing is assigned after it."""
        if not dtype.is_floating_point:
            raise UsageError(f"got a Gram of {dtype}; expected a real floating-point dtype: convert the values")
        self._view: View = View.whole(shape) if view is None else view
        self.shape: tuple[int, int] = self._view.shape
        self.dtype: torch.dtype = dtype
        self.device: torch.device = device
        self.labels: Labels = labels.checked(self.shape)
        self._born: bool = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_born" in vars(self):
            self._refuse(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(
            f"got a new value for {name!r} of {self!r}, but a Gram never changes; with_labels(name=…, meta=…) makes another"
            " one of the same numbers (in a subclass: assign before super().__init__)"
        )

    def with_labels(self: Kind, **changes: Any) -> Kind:
        """The same numbers with another `name`, `rows`, `outputs`, `coverage` or `meta`; nothing is copied.

        Examples:
            >>> from ntkscope.linalg import as_gram
            >>> as_gram(np.eye(2)).with_labels(name="identity")
            DenseGram('identity', 2 × 2 symmetric, rows: samples, float64)
        """
        unknown = sorted(changes.keys() - {"name", "rows", "outputs", "coverage", "meta"})
        if unknown:
            raise UsageError(
                f"got {', '.join(unknown)} for with_labels; expected name, rows, outputs, coverage or meta: everything else"
                " belongs to the numbers, and is passed when the Gram is created"
            )
        return self._copy(labels=self.labels.but(**changes).checked(self.shape))

    # -- its metadata -----------------------------------------------------------------------------------------------

    @property
    def symmetric(self) -> bool:
        """Whether both sides are the same inputs."""
        return bool(self.labels.symmetric)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.labels.name

    @property
    def rows(self) -> str:
        """What a row is, in words."""
        return self.labels.rows

    @property
    def outputs(self) -> int:
        """1, or c when row `i*c + k` is output k of sample i."""
        return self.labels.outputs

    @property
    def coverage(self) -> Any | None:
        """Which path each parameter took, where the engine computed this."""
        return self.labels.coverage

    @property
    def meta(self) -> Mapping[str, Any]:
        """Further information from whoever computed it; read-only."""
        return self.labels.meta or {}

    @property
    def certificate(self) -> Certificate | None:
        """How the computation was checked against plain autograd; None if nothing was checked."""
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
                f"diagonal of {self!r}: its two sides are different inputs, so its diagonal is meaningless;"
                " use row_diagonal / column_diagonal for k(x, x) of each side"
            )
        assert self.row_diagonal is not None
        return self.row_diagonal

    @cached_property
    def row_diagonal(self) -> Float[Tensor, " n"] | None:
        """`k(x_i, x_i)` of the row inputs, or None if unknown."""
        if self.labels.row_diagonal is None and self.symmetric:
            return self._diagonal()
        return self.labels.row_diagonal

    @cached_property
    def column_diagonal(self) -> Float[Tensor, " m"] | None:
        """`k(x'_j, x'_j)` of the column inputs, or None if unknown."""
        return self.row_diagonal if self.symmetric else self.labels.column_diagonal

    @property
    def out_of_core(self) -> bool:
        """Whether every product reads the matrix from somewhere slow: if so, prefer few products with many columns."""
        return self._out_of_core

    @property
    def contributions(self) -> Mapping[str, Tensor]:
        """The share of every parameter, if the kernel kept them (`per_layer=True`)."""
        return self.meta.get("contributions", {})

    def __matmul__(self, v: Vectors) -> Vectors:
        """`K v` for `v` of shape (m,) or (m, k), as the same kind of array, in the wider of the two dtypes."""
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
        return self if self.symmetric else self._seen(self._view.transpose(), self.labels.swapped())

    def tiles(self, size: int | None = None) -> Iterator[Tile]:
        """`(rows, columns, values)` pieces of at most `size × size` that cover the matrix exactly once.

        Without `size` each kind of Gram uses the shape that is fastest for it.
        """
        if size is not None and size < 1:
            raise UsageError(f"tiles of size {size}; expected at least 1")
        return self._tiles(size)

    def normalized(self) -> Gram:
        """`K_ij / sqrt(k(x_i, x_i) k(x'_j, x'_j))`; the diagonal of a symmetric one is exactly 1."""
        rows = inverse_norms(self.row_diagonal, "row", repr(self))
        columns = rows if self.symmetric else inverse_norms(self.column_diagonal, "column", repr(self))
        ones = [torch.ones(size, dtype=self.dtype, device=self.device) for size in self.shape]
        labels = self.labels.but(row_diagonal=ones[0], column_diagonal=ones[1]).noting(normalized=True)
        return self._seen(self._view.scaled(rows, columns), labels)

    def scaled(self, rows: Float[Tensor, " n"], columns: Float[Tensor, " m"] | None = None) -> Gram:
        """`diag(rows) K diag(columns)`; without `columns` they are `rows`, and a symmetric Gram stays so."""
        symmetric = self.symmetric and columns is None
        scales = [s.detach().to(self.device, torch.float64) for s in (rows, rows if columns is None else columns)]
        if tuple(map(len, scales)) != self.shape:
            raise UsageError(f"got scales of lengths {tuple(map(len, scales))} for {self!r}; expected {self.shape}")
        labels = self._known().scaled(*scales).but(symmetric=symmetric)
        return self._seen(self._view.scaled(*scales), labels)

    def eigvalsh(self, k: int | None = None) -> Float[Tensor, " e"]:
        """Eigenvalues of the symmetric part, ascending, in float64: all of them, or the `k` largest.

        All: O(n³), by LAPACK up to 20,000 rows if memory allows, beyond that by `band_eigenvalues`, strip by strip in
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
        rows, columns = as_index(chosen_rows, n, self.device), as_index(chosen_columns, m, self.device)
        row_numbers, column_numbers = (torch.arange(s, device=self.device)[i] for s, i in ((n, rows), (m, columns)))
        labels = self._known().chosen(
            rows,
            columns,
            symmetric=self.symmetric and torch.equal(row_numbers, column_numbers),
            whole=whole_samples(row_numbers, self.outputs) and whole_samples(column_numbers, self.outputs),
        )
        return self._seen(self._view.take(rows, columns), labels)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Gram:
        """The same Gram in another dtype or on another device."""
        dtype = self.dtype if dtype is None else dtype
        device = self.device if device is None else torch.device(device)
        if dtype == self.dtype and device == self.device:
            return self
        return self._moved(dtype, device)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        n, m = self.shape
        kind = "symmetric" if self.symmetric else "cross"
        label = f"{self.name!r}, " if self.name else ""
        return f"{type(self).__name__}({label}{n} × {m} {kind}, rows: {self.rows}, {str(self.dtype).split('.')[1]})"

    def _repr_html_(self) -> str:
        """Facts as a table; a heat map and the eigenvalues where both cost next to nothing."""
        facts = {"kernel": self.name or "(no name)", "shape": " × ".join(map(str, self.shape)), "rows": self.rows}
        facts |= {"numbers": f"{str(self.dtype).removeprefix('torch.')} on {self.device}, {type(self).__name__}"}
        known = {"certificate": self.certificate, "coverage": self.coverage}
        facts |= {name: str(value) for name, value in known.items() if value is not None}
        return f"<div>{table('Gram', facts)}{self._drawn()}</div>"

    def _drawn(self) -> str:
        if self.out_of_core or not self._cheap_diagonal or 0 in self.shape:
            return ""
        rows, columns = (range(0, size, -(-size // PIXELS)) for size in self.shape)
        values = self[list(rows), list(columns)].numpy().astype(np.float64)
        if not np.isfinite(values).all():
            return ""
        every = f", {len(rows)} × {len(columns)} of its entries" if values.shape != self.shape else ""
        drawn = heat_map(f"{self.name or 'kernel'}{every}", values)
        if self.symmetric and len(self) <= DECOMPOSED and bool(torch.isfinite(self.dense()).all()):
            drawn += spectrum("eigenvalues", self.eigvalsh().cpu().numpy())
        return drawn

    # -- shared by the subclasses -----------------------------------------------------------------------------------

    def _copy(self: Kind, **changes: Any) -> Kind:
        """Another Gram of this kind that holds the same numbers, with some attributes changed."""
        kept = {k: v for k, v in vars(self).items() if not isinstance(getattr(type(self), k, None), cached_property)}
        new = object.__new__(type(self))
        vars(new).update(kept | changes)
        return new

    def _known(self) -> Labels:
        """The labels, with the diagonals where they cost little."""
        if not self._cheap_diagonal:
            return self.labels
        return self.labels.but(row_diagonal=self.row_diagonal, column_diagonal=self.column_diagonal)

    def _with_diagonal(self, values: Tensor, rows: slice, columns: slice) -> Tensor:
        """A fresh tile with the known diagonal written into it: a normalised one is 1 there, not 1 ± rounding."""
        first, last = max(rows.start, columns.start), min(rows.stop, columns.stop)
        if self.symmetric and self.labels.row_diagonal is not None and first < last:
            both = torch.arange(first, last, device=self.device)
            values[both - rows.start, both - columns.start] = self.labels.row_diagonal[both]
        return values

    def _symmetrised(self, values: Tensor) -> Tensor:
        """The whole matrix, exactly symmetric with the known diagonal if `symmetric`."""
        everything = slice(0, self.shape[0])
        return self._with_diagonal((values + values.T) / 2, everything, everything) if self.symmetric else values

    def _apply(self, v: Tensor) -> Tensor:
        if v.ndim not in (1, 2) or v.shape[0] != self.shape[1]:
            raise UsageError(
                f"got v of shape {tuple(v.shape)} for {self!r} @ v; expected ({self.shape[1]},) or ({self.shape[1]}, k)"
            )
        if v.is_complex():
            raise UsageError(
                f"got {v.dtype} for v in {self!r} @ v; expected real vectors: take real and imaginary parts"
            )
        if v.device != self.device:
            raise UsageError(f"{self!r} on {self.device} @ v on {v.device}; move one of them with .to(device=…)")
        v = v if v.is_floating_point() else v.to(self.dtype)
        return self._matmul(v) if v.ndim == 2 else self._matmul(v[:, None])[:, 0]

    # -- what a subclass writes: these two, of what its view shows ----------------------------------------------------

    @abstractmethod
    def _matmul(self, v: Tensor) -> Tensor:
        """`K v` for real `v` of shape (m, k), in the wider of the two dtypes."""

    @abstractmethod
    def _tiles(self, size: int | None) -> Iterator[Tile]:
        """The pieces of `tiles`."""

    # -- and these where it can do better -----------------------------------------------------------------------------

    def _seen(self, view: View, labels: Labels) -> Gram:
        """What `view` shows of the whole matrix, with these labels: kept as a view, or applied if the numbers are held."""
        return self._copy(_view=view, shape=view.shape, labels=labels.checked(view.shape))

    def _moved(self, dtype: torch.dtype, device: torch.device) -> Gram:
        """The same in another dtype or place."""
        labels = self.labels.moved(dtype, device)
        return self._copy(dtype=dtype, device=device, _view=self._view.to(device), labels=labels)

    def _form(self) -> Tensor:
        """The whole matrix; exactly symmetric if `symmetric`."""
        values = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for rows, columns, tile in self._tiles(None):
            values[rows, columns] = tile
        return self._symmetrised(values)

    def _diagonal(self) -> Tensor:
        """The diagonal; called for symmetric Grams only, when none was given."""
        values = torch.empty(self.shape[0], dtype=self.dtype, device=self.device)
        for rows, columns, tile in self._tiles(None):
            both = slice(max(rows.start, columns.start), min(rows.stop, columns.stop))
            if both.start < both.stop:
                corner = tile[both.start - rows.start : both.stop - rows.start]
                values[both] = corner[:, both.start - columns.start : both.stop - columns.start].diagonal()
        return values

    def _eigenvalues(self) -> Tensor:
        """All eigenvalues of the symmetric part, ascending, in float64; called for symmetric Grams only."""
        return symmetric_eigenvalues(self._form())

    def _decomposed_rows(self) -> int:
        """The size of the matrix that `_eigenvalues` decomposes."""
        return self.shape[0]


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

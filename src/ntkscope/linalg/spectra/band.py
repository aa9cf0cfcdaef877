"""All eigenvalues of a matrix too large for LAPACK: reduced to a band strip by strip, in memory or in scratch files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import UserDict
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import eigvals_banded
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg.grams.linear_map import Pieces

WIDTHS = {"memory": 64, "files": 256}  # a wider band has fewer panels, and its own eigenvalues cost more
STRIP = 1024
LAPACK_ROWS = 20_000
"""Above this size dense LAPACK is not used: its workspaces are indexed by 32 bits (n² > 2³¹ from 46,341 rows, 2n² for
eigenvectors from 32,767), and long before that it holds two more copies of the matrix in double precision."""


def lapack_is_safe(n: int, device: torch.device) -> bool:
    """Whether an (n, n) matrix may go to dense LAPACK: not too large for its indices, and it fits with two float64 copies."""
    return n <= LAPACK_ROWS and (2 * 8 + 4) * n * n <= available_bytes(device)


def available_bytes(device: torch.device) -> int:
    """Memory available on a device now, without swapping."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 8 << 30


def band_eigenvalues(
    gram: Pieces, *, width: int | None = None, strip: int | None = None, in_memory: bool | None = None
) -> Float[Tensor, " n"]:
    """All eigenvalues of a symmetric Gram, ascending, in float64; O(n³), every index in 64 bits.

    `Qᵀ K Q = B` with B of `width` diagonals to a side, by blocked Householder reflections, then B's eigenvalues by
    LAPACK's band routines, which need `width · n` numbers. The lower triangle, `4 n²` bytes, is kept in strips of `strip`
    columns (1,024), in memory where it takes at most half of what is free, else in files of the temporary folder, each
    read and written once per panel: `n / width` times. Width: 64 in memory, 256 in files. As backward stable as LAPACK's
    own. Bischof, Lang & Sun (2000).

    >>> from ntkscope.linalg import as_gram
    >>> band_eigenvalues(as_gram(torch.diag(torch.tensor([3.0, 1.0, 2.0]))))
    tensor([1., 2., 3.], dtype=torch.float64)
    """
    n = gram.shape[0]
    if in_memory is None:
        in_memory = 2 * 4 * n * n <= available_bytes(gram.device)
    width = WIDTHS["memory" if in_memory else "files"] if width is None else width
    strip = STRIP if strip is None else strip
    if not gram.symmetric or width < 1 or strip < 1:
        raise UsageError(
            f"got {gram!r}, width={width}, strip={strip}; expected a symmetric Gram and sizes of at least 1"
        )
    if n == 0:
        return torch.zeros(0, dtype=torch.float64, device=gram.device)
    width = min(width, n)
    strip = -(-strip // width) * width  # so that no panel lies in two strips
    with _strips(gram, in_memory) as strips:
        for j in range(0, n, strip):
            strips[j // strip] = _lower(gram, j, min(j + strip, n))
        band = _reduce(strips, n, width, strip, gram.device)
    return torch.from_numpy(eigvals_banded(band, lower=True, overwrite_a_band=True)).to(gram.device)


Strips: TypeAlias = MutableMapping[int, Tensor]
"""Columns of the lower triangle, one strip at a time: from its full diagonal block down."""


class InFiles(UserDict[int, Tensor]):
    """Strips in files of a folder; their shapes are in memory."""

    def __init__(self, folder: str, device: torch.device) -> None:
        super().__init__()
        self._folder, self._device = Path(folder), device
        self._shapes: dict[int, tuple[int, ...]] = {}

    def __getitem__(self, j: int) -> Tensor:
        values = np.fromfile(self._folder / f"{j}", dtype=np.float64).reshape(self._shapes[j])
        return torch.from_numpy(values).to(self._device)

    def __setitem__(self, j: int, values: Tensor) -> None:
        self._shapes[j] = tuple(values.shape)
        values.cpu().numpy().tofile(self._folder / f"{j}")


@contextmanager
def _strips(gram: Pieces, in_memory: bool) -> Iterator[Strips]:
    """A place for the lower triangle; where there is none, an error that says what else can be computed."""
    need = 4 * gram.shape[0] ** 2
    if in_memory:
        yield {}
        return
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if need > free:
        raise UsageError(
            f"all {gram.shape[0]} eigenvalues of {gram!r} need {need / 2**30:.3g} GiB of scratch space; memory does not have"
            f" it and {folder} has {free / 2**30:.3g} GiB: set TMPDIR to a larger disk, ask for the largest with"
            " eigvalsh(k=…), or for their density with spectral_density (error bars)"
        )
    with tempfile.TemporaryDirectory(prefix="ntkscope-eigenvalues-") as scratch:
        yield InFiles(scratch, gram.device)


def _lower(gram: Pieces, first: int, last: int) -> Tensor:
    """Columns `first` to `last` from row `first` down, in float64."""
    part = gram[first:, first:last]
    values = torch.empty(part.shape, dtype=torch.float64, device=gram.device)
    for rows, columns, tile in part.tiles():
        values[rows, columns] = tile.detach().to(torch.float64)
    if not bool(torch.isfinite(values).all()):
        raise NumericalError(f"{gram!r} holds NaN or infinity; it has no eigenvalues")
    square = values[: last - first]
    square.copy_((square + square.T) / 2)
    return values


def _reduce(strips: Strips, n: int, width: int, strip: int, device: torch.device) -> np.ndarray:
    """The band `(width + 1, n)`, lower form: row d holds the d-th diagonal below the main one.

    A panel's reflections `I - V T Vᵀ` turn what lies right of it into `A - V Wᵀ - W Vᵀ`. That is written into a strip only
    when the strip is read for the product with the next panel's V, so a panel costs one read and one write.
    """
    band = np.zeros((width + 1, n))
    V = W = torch.zeros(n, 0, dtype=torch.float64, device=device)
    for start in range(0, n, width):
        end = min(start + width, n)
        first = start // strip * strip
        panel = strips[start // strip][start - first :, start - first : end - first]
        panel = panel - V[start:] @ W[start:end].T - W[start:] @ V[start:end].T
        _into(band, start, start, panel[: end - start].tril())
        if end == n:
            break
        reflectors, T, R = householder(panel[end - start :])
        _into(band, end, start, R)
        ahead = V.new_zeros(n, reflectors.shape[1])
        ahead[end:] = reflectors
        image = torch.zeros_like(ahead)
        left, right = torch.cat([V, W], 1), torch.cat([W, V], 1)
        for j in range(end // strip, -(-n // strip)):
            top, bottom = j * strip, min((j + 1) * strip, n)
            values = strips[j]
            values.addmm_(left[top:], right[top:bottom].T, alpha=-1)
            strips[j] = values
            image[top:] += values @ ahead[top:bottom]
            image[top:bottom] += values[bottom - top :].T @ ahead[bottom:]
        image[:end] = 0
        image = image @ T
        V, W = ahead, image - ahead @ (T.T @ (ahead.T @ image)) / 2
    return band


def householder(panel: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`V`, `T` and `R` with `(I - V T Vᵀ)ᵀ panel = R`: compact WY form. Schreiber & Van Loan (1989)."""
    packed, tau = torch.geqrf(panel)
    size = len(tau)
    V = packed[:, :size].tril(-1)
    V.diagonal().fill_(1.0)
    above = tau[:, None] * (V.T @ V).triu(1)
    T = torch.linalg.solve_triangular(above, tau.diag(), upper=True, unitriangular=True)
    return V, T, packed[:size].triu()


def _into(band: np.ndarray, row: int, column: int, block: Tensor) -> None:
    """Put a block whose first entry is `(row, column)` of the matrix into its diagonals."""
    values = block.cpu().numpy()
    for offset in range(values.shape[1]):
        for_this = values[:, offset]
        d = row - (column + offset)
        low, high = max(0, -d), min(len(for_this), len(band) - d)
        band[low + d : high + d, column + offset] += for_this[low:high]

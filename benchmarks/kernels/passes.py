"""How often a kernel on disk is read: everything downstream on the trace-NTK of LeNet in a store, with nothing formed.

A pass is one product with the stored kernel, whatever its number of columns: every tile is read once. Forming the matrix is
an error here; `tests/linalg/test_out_of_core.py` holds the answers to dense algebra.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.learning.kernel_glm import kernel
from benchmarks.outcome import Check, Outcome
from ntkscope.linalg import (
    Gram,
    Grid,
    TileValues,
    estimate_effective_rank,
    psd_health,
    spectral_density,
    top_eigenpairs,
)
from ntkscope.storage import KernelStore, TiledGram, fill, open_kernel
from ntkscope.surrogates import KernelGLM, KernelRidgeClassifier

N, QUICK, TILE = 5000, 500, 1000
TENS = 60  # passes of a fit


class Values:
    """A matrix in memory as a source of tiles."""

    dtype = torch.float32
    labels: dict[str, Any] = {}  # noqa: RUF012
    fingerprint = {"kernel": "benchmark"}  # noqa: RUF012

    def __init__(self, values: Tensor, size: int) -> None:
        self.values, self.grid = (values + values.T) / 2, Grid(len(values), len(values), size, symmetric=True)

    def tile(self, i: int, j: int) -> TileValues:
        rows, columns = self.grid.rows(i), self.grid.columns(j)
        diagonal = self.values.diagonal().double()
        return TileValues(self.values[rows, columns], diagonal[rows], diagonal[columns])


class Passes:
    """Counts products with stored kernels and refuses to form one, while it is entered."""

    def __enter__(self) -> Passes:
        self.count, self._kept = 0, (TiledGram._matmul, TiledGram._form)
        matmul, form = self._kept

        def counted(gram: TiledGram, v: Tensor) -> Tensor:
            self.count += 1
            return matmul(gram, v)

        def refused(gram: TiledGram) -> Tensor:
            if gram.shape[0] == gram.shape[1]:
                raise MemoryError(f"{gram!r} was formed")
            return form(gram)

        TiledGram._matmul, TiledGram._form = counted, refused  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        TiledGram._matmul, TiledGram._form = self._kept  # type: ignore[method-assign]


def tasks(K: Gram, y: np.ndarray) -> dict[str, Callable[[], str]]:
    """What is asked of the kernel, each with a line on what came."""

    def glm() -> str:
        found = KernelGLM().fit(K, y)
        return f"relative gradient {found.gradient_norm_:.1e}"

    def ridge(alpha: float) -> str:
        found = KernelRidgeClassifier(alpha).fit(K, y)
        return f"converged: {found.converged_}"

    def rank(of: Any) -> str:
        found = estimate_effective_rank(K, of)
        return f"{found.value:.5g} ± {found.standard_error:.2g}"

    def health() -> str:
        found = psd_health(K)
        return (
            f"λ_min {found.smallest_eigenvalue:.2g} ± {found.smallest_error:.1g}, λ_max {found.largest_eigenvalue:.4g}"
        )

    return {
        "K @ V, ten columns": lambda: str(tuple((K @ torch.ones(len(K), 10, dtype=torch.float64)).shape)),
        "ten largest eigenpairs": lambda: f"λ_max {float(top_eigenpairs(K, 10)[0][-1]):.6g}",
        "fifty largest eigenpairs": lambda: f"λ_max {float(top_eigenpairs(K, 50)[0][-1]):.6g}",
        "effective rank": lambda: rank("kernel"),
        "effective rank of the features": lambda: rank("features"),
        "spectral density": lambda: spectral_density(K, method="quadrature", steps=32).method,
        "PSD health": health,
        "KernelGLM, alpha 1e-4": glm,
        "KernelRidge, alpha 1": lambda: ridge(1.0),
        "KernelRidge, alpha 0.1": lambda: ridge(0.1),
    }


def run(quick: bool = False) -> Outcome:
    """Write the kernel to a store, then ask everything of it."""
    values, y, source = kernel(QUICK if quick else N)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, Passes() as passes:
        tiles = Values(torch.from_numpy(values), 100 if quick else TILE)
        fill(KernelStore.prepare(folder, tiles), tiles)
        K = open_kernel(folder)
        for what, act in tasks(K, y).items():
            passes.count, start = 0, time.perf_counter()
            found = act()
            rows.append({"what": what, "passes": passes.count, "seconds": time.perf_counter() - start, "found": found})
            print(f"  {what}: {passes.count} passes, {rows[-1]['seconds']:.3g} s, {found}", flush=True)
    fits = max(row["passes"] for row in rows if row["what"].startswith("Kernel"))
    return Outcome(
        title=f"A kernel on disk, {len(values)} points: passes over it",
        rows=rows,
        checks=[Check("passes of a fit", f"at most {TENS}", str(fits), fits <= TENS)],
        notes=(f"{source}; float32 tiles of {tiles.grid.size} × {tiles.grid.size}, nothing formed.",),
    )

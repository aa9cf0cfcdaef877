"""How far a kernel matrix is from positive semi-definite, and how to repair it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.core.arguments import from_numpy
from ntkscope.core.checked import Count, Several
from ntkscope.linalg.grams.corrected import CorrectedGram
from ntkscope.linalg.grams.dense import DenseGram, as_gram
from ntkscope.linalg.grams.gram import Gram, slices
from ntkscope.linalg.solvers.system import EIGENVECTORS, symmetric_part
from ntkscope.linalg.spectra.block_lanczos import block_eigenpairs, block_krylov

EXACT_UP_TO = 5000


@dataclass(frozen=True)
class PSDHealth:
    """What the eigenvalues say about whether the matrix is a kernel; `str()` gives a short summary.

    - `smallest_error`: by decomposition `n ε λ_max`, a bound. By Lanczos the residual of the Ritz pair, so an eigenvalue lies
      this near; the true smallest one is at most `smallest_eigenvalue`, and may be below it where no pass saw it.
    - `negative_mass`: `Σ_{λ<0} |λ| / Σ |λ|`; by quadrature an estimate that is biased low, with a standard error over probes,
      and 0 for a kernel that is PSD.
    - `condition_number`: `λ_max / λ_min`; infinite where λ_min is no more than rounding (`n ε λ_max`, float64), or negative.
    - `asymmetry`: `‖K - Kᵀ‖_F / ‖K‖_F` before the symmetric part was taken; by Lanczos an estimate from the probes.
    - `rounding`: `ε ‖K‖_F`, ε of the dtype of the entries: what keeping them in that dtype can move an eigenvalue by.
    - `jitter`: suggested; added to the diagonal, it lets Cholesky in float64 succeed; 0 where it succeeds anyway.
    - `passes`: products with K, each a pass over it.
    """

    rows: int
    smallest_eigenvalue: float
    smallest_error: float
    largest_eigenvalue: float
    negative_mass: float
    negative_mass_error: float
    condition_number: float
    asymmetry: float
    rounding: float
    jitter: float
    method: Literal["eigenvalues", "lanczos"]
    passes: int

    @property
    def positive(self) -> bool:
        """Whether no eigenvalue is known to lie below what rounding explains."""
        return self.smallest_eigenvalue + self.smallest_error >= -self.rounding

    def __str__(self) -> str:
        how = "by decomposition" if self.method == "eigenvalues" else f"estimated in {self.passes} passes"
        verdict = "positive semi-definite up to rounding" if self.positive else "NOT positive semi-definite"
        return (
            f"{self.rows} × {self.rows} kernel: {verdict} ({how})\n"
            f"  eigenvalues from {self.smallest_eigenvalue:.3g} ± {self.smallest_error:.1g} to"
            f" {self.largest_eigenvalue:.4g}, condition number {self.condition_number:.3g}\n"
            f"  negative mass {self.negative_mass:.2g} ± {self.negative_mass_error:.1g}, asymmetry {self.asymmetry:.2g},"
            f" rounding {self.rounding:.2g}, suggested jitter {self.jitter:.2g}"
        )


def psd_health(
    K: Gram | Tensor | np.ndarray,
    *,
    method: Literal["eigenvalues", "lanczos"] | None = None,
    probes: Several = 16,
    steps: Count = 32,
    seed: int = 0,
) -> PSDHealth:
    """Extreme eigenvalues, negative mass, condition, asymmetry and the jitter that would help.

    "eigenvalues" decomposes, O(n³): the default up to 5,000 rows in memory. "lanczos" takes `steps + 1` passes with
    `probes` columns, from which both ends of the spectrum (Ritz values of the block Krylov space, with their residuals)
    and the negative mass (stochastic quadrature) follow; basis and image take `16 n probes steps` bytes.

    Examples:
        >>> found = psd_health(torch.diag(torch.tensor([2.0, 1.0, -1.0])))
        >>> found.smallest_eigenvalue, found.negative_mass, found.positive
        (-1.0, 0.25, False)
    """
    gram, asymmetry = _looked_at(K)
    n = gram.shape[0]
    if n < 1:
        raise UsageError("got an empty matrix; expected at least one row")
    if method is None:
        method = "eigenvalues" if n <= EXACT_UP_TO and not gram.out_of_core else "lanczos"
    if method == "eigenvalues":
        found = _by_decomposition(gram)
    else:
        found = _by_lanczos(gram, min(probes, n), steps, seed)
    low, high = found.smallest, found.largest
    needed = n * torch.finfo(torch.float64).eps * max(abs(high), abs(low))
    return PSDHealth(
        rows=n,
        smallest_eigenvalue=low,
        smallest_error=found.error,
        largest_eigenvalue=high,
        negative_mass=found.negative_mass,
        negative_mass_error=found.negative_mass_error,
        condition_number=high / low if low > needed else math.inf,
        asymmetry=found.asymmetry if asymmetry is None else asymmetry,
        rounding=torch.finfo(gram.dtype).eps * found.norm,
        jitter=0.0 if low - found.error > 0 and low > needed else max(0.0, found.error - low) + needed,
        method=method,
        passes=found.passes,
    )


def _looked_at(K: Gram | Tensor | np.ndarray) -> tuple[Gram, float | None]:
    """A symmetric Gram, and the asymmetry of the given matrix if its entries are in memory."""
    if isinstance(K, Gram) and not isinstance(K, DenseGram):
        return as_gram(K, symmetric=True), None
    given = as_gram(K, symmetric=True).dense() if isinstance(K, Gram) else as_gram(K, symmetric=False).dense()
    if isinstance(K, np.ndarray | Tensor):
        given = (from_numpy(K) if isinstance(K, np.ndarray) else K).detach()
        given = given if given.is_floating_point() else given.to(torch.float64)
    if given.shape[0] != given.shape[1]:
        raise UsageError(f"got a matrix of shape {tuple(given.shape)}; expected a square kernel")
    gap = size = 0.0
    for rows in slices(len(given), 1024):
        part = given[rows].to(torch.float64)
        gap += float((part - given[:, rows].T).square().sum())
        size += float(part.square().sum())
    if isinstance(K, Gram):
        return K, math.sqrt(gap / size) if size else 0.0
    symmetric = given if gap == 0 else (given + given.T) / 2
    return DenseGram(symmetric, symmetric=True), math.sqrt(gap / size) if size else 0.0


class _Found(NamedTuple):
    """What either method finds: `error` of the smallest eigenvalue; `norm`, Frobenius."""

    smallest: float
    error: float
    largest: float
    negative_mass: float
    negative_mass_error: float
    asymmetry: float
    norm: float
    passes: int


def _by_decomposition(gram: Gram) -> _Found:
    values = gram.eigvalsh()
    size = values.abs()
    error = len(values) * torch.finfo(torch.float64).eps * float(size.max())
    negative = float((-values).clamp_min(0).sum() / size.sum().clamp_min(1e-300))
    return _Found(float(values[0]), error, float(values[-1]), negative, 0.0, 0.0, float(size.square().sum().sqrt()), 1)


def _by_lanczos(gram: Gram, probes: int, steps: int, seed: int) -> _Found:
    n = gram.shape[0]
    start = torch.randn(n, probes, dtype=torch.float64, generator=generator(seed, "psd-health")).to(gram.device)
    seen = (gram @ start).to(torch.float64)
    if not bool(torch.isfinite(seen).all()):
        raise NumericalError(f"{gram!r} @ v gave NaN or infinity; check the inputs of the kernel")
    between = start.T @ seen
    upper = torch.triu_indices(probes, probes, 1)
    skew = float((between - between.T)[upper[0], upper[1]].square().mean().sqrt())
    norm = float(seen.square().sum(0).mean().sqrt())  # E ‖K v‖² = ‖K‖_F²
    basis, image = block_krylov(gram, start, steps)
    core = basis.T @ image
    ritz, rotation = torch.linalg.eigh((core + core.T) / 2)
    lowest = rotation[:, 0]
    residual = float(torch.linalg.vector_norm(image @ lowest - ritz[0] * (basis @ lowest)))
    weights = rotation[:probes].square()
    samples = n * (weights * (-ritz).clamp_min(0)).sum(1)
    total = max(float(n * (weights * ritz.abs()).sum(1).mean()), torch.finfo(torch.float64).tiny)
    rounding = n * torch.finfo(torch.float64).eps * float(ritz.abs().max())
    return _Found(
        smallest=float(ritz[0]),
        error=residual + rounding,
        largest=float(ritz[-1]),
        negative_mass=float(samples.mean()) / total,
        negative_mass_error=float(samples.std()) / probes**0.5 / total,
        asymmetry=skew / norm if norm else 0.0,
        norm=max(norm, float(ritz.abs().max())),
        passes=1 + -(-basis.shape[1] // probes),
    )


def nearest_psd(
    K: Gram | Tensor | np.ndarray,
    *,
    floor: float | int = 0.0,
    method: Literal["eigenvalues", "deflation"] | None = None,
    pairs: Count = 32,
    max_passes: Count = 64,
    seed: int = 0,
) -> Gram:
    """The kernel with its negative eigenvalues lifted to `floor`: `K + Σ_{λ_i<floor} (floor - λ_i) u_i u_iᵀ`.

    "eigenvalues" finds them all, O(n³): the result is the nearest matrix, in Frobenius norm, whose eigenvalues are all ≥
    floor (Higham 1988), up to rounding of the dtype it is kept in. "deflation", the default for kernels on disk and above
    5,000 rows, finds up to `pairs` of them by block Lanczos and adds the sum as a correction of low rank beside the
    kernel, which stays where it is. What is added is positive semi-definite, so no eigenvalue of K is lowered, whatever
    was found; eigenvalues that were not found, or not fully converged, remain: call `psd_health` on the result.
    `meta["nearest_psd"]` says how many were lifted, the smallest of them, the largest residual and the norm of the change.
    A kernel without such eigenvalues is returned unchanged.

    Examples:
        >>> nearest_psd(torch.diag(torch.tensor([2.0, -1.0]))).dense()
        tensor([[2., 0.],
                [0., 0.]])
    """
    gram = _looked_at(K)[0]
    n = gram.shape[0]
    if method is None:
        method = "eigenvalues" if n <= EXACT_UP_TO and not gram.out_of_core else "deflation"
    if n == 0:
        return gram
    if method == "eigenvalues":
        values, vectors = torch.linalg.eigh(symmetric_part(gram, torch.float64, largest=EIGENVECTORS))
        residual = 0.0
    else:
        found = block_eigenpairs(gram, min(pairs, n), end="smallest", max_passes=max_passes, seed=seed)
        values, vectors, residual = found.values, found.vectors, float(found.residuals.max())
    low = values < floor
    if not bool(low.any()):
        return gram
    lift = floor - values[low]
    said: dict[str, Any] = {
        "method": method,
        "floor": float(floor),
        "lifted": int(low.sum()),
        "smallest": float(values[0]),
        "largest residual": residual,
        "change (Frobenius)": float(torch.linalg.vector_norm(lift)),
        "perhaps more": method == "deflation" and bool(low.all()),
    }
    labels = gram.labels.but(row_diagonal=None, column_diagonal=None).noting(nearest_psd=said)
    corrected = CorrectedGram(gram, vectors[:, low], lift, labels=labels)
    if method == "deflation":
        return corrected
    return DenseGram(corrected.dense(), labels=labels)

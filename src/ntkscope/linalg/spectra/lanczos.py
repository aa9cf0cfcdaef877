"""Lanczos: a symmetric matrix, known by its products alone, seen through a small tridiagonal one."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.core.checked import Count, NonNegative
from ntkscope.linalg.grams.linear_map import Multiplies
from ntkscope.linalg.spectra.block_lanczos import TOLERANCE, EigenPairs, End, block_eigenpairs
from ntkscope.linalg.spectra.missed import further_pairs, none_above

PASSES = 300
WHOLE = 256  # rows up to which computing all eigenvalues is the fastest way to get some
PROOF = 4096  # rows up to which a Cholesky factorisation is the cheapest check
ROUNDS = 12  # of looking for missed copies


def lanczos(
    K: Multiplies, start: Float[Tensor, "n k"], steps: Count
) -> tuple[Float[Tensor, "k n s"], Float[Tensor, "k s"], Float[Tensor, "k s"], Float[Tensor, "k n"]]:
    """`steps` of Lanczos from each column of `start` at once, fully reorthogonalised: `(Q, α, β, r)`, one row per column.

    For each `K Q = Q T + r e_sᵀ` with orthonormal Q, `T` tridiagonal with diagonal α and off-diagonal β[:-1], and
    `β[-1] = ‖r‖`. One product `K @ V` per step; memory `steps · n · k`. Where the Krylov space is exhausted β is exactly
    0 and the vectors after it are 0. Lanczos (1950).
    """
    n, k = start.shape
    if tuple(K.shape) != (n, n) or not bool(start.any(0).all()):
        raise UsageError(
            f"got a matrix of shape {tuple(K.shape)} and {k} columns of {n}; expected ({n}, {n}), none zero"
        )
    if isinstance(K, Tensor) and K.dtype != start.dtype:
        raise UsageError(f"got a matrix of {K.dtype} and columns of {start.dtype}; expected one dtype")
    q = (start / torch.linalg.vector_norm(start, dim=0)).T
    basis = torch.zeros(k, steps, n, dtype=start.dtype, device=start.device)
    alpha, beta = (torch.zeros(k, steps, dtype=start.dtype, device=start.device) for _ in range(2))
    scale = torch.zeros(k, dtype=start.dtype, device=start.device)
    r = torch.zeros_like(q)
    for step in range(steps):
        basis[:, step] = q
        image = (K @ q.T).T
        alpha[:, step] = (q * image).sum(1)
        scale = torch.maximum(scale, torch.linalg.vector_norm(image, dim=1))
        r = image[:, :, None]
        known = basis[:, : step + 1]
        for _ in range(2):  # twice is enough (Parlett)
            r = r - known.mT @ (known @ r)
        r = r[:, :, 0]
        size = torch.linalg.vector_norm(r, dim=1)
        alive = size > n * torch.finfo(start.dtype).eps * scale
        beta[:, step] = torch.where(alive, size, 0.0)
        r = torch.where(alive[:, None], r, 0.0)
        q = torch.where(alive[:, None], r / size[:, None], 0.0)
        if not bool(alive.any()):
            break
    return basis.mT, alpha, beta, r


def tridiagonal(alpha: Float[Tensor, "k s"], beta: Float[Tensor, "k s"]) -> Float[Tensor, "k s s"]:
    """The matrices T of `lanczos`."""
    return torch.diag_embed(alpha) + torch.diag_embed(beta[:, :-1], 1) + torch.diag_embed(beta[:, :-1], -1)


def top_eigenpairs(
    K: Multiplies,
    k: int,
    *,
    by: Literal["value", "magnitude"] = "value",
    tolerance: NonNegative = 0.0,
    max_iter: Count | None = None,
    seed: int = 0,
) -> tuple[Float[Tensor, " k"], Float[Tensor, "n k"]]:
    """The `k` largest eigenvalues (by value or by magnitude), ascending, and eigenvectors as columns, in float64.

    Block Lanczos, about ten products `K @ V` with a few more than k columns; `max_iter` counts products. Repeated eigenvalues
    appear with their multiplicity; that none was missed is checked, by a Cholesky factorisation of a matrix in memory (up to
    4,096 rows), else by block Lanczos from a random block orthogonal to what was found (about eight products more), and what
    was missed is added; a `NumericalError` where that does not end. `tolerance` is relative to the largest eigenvalue; 0
    means 1e-11. The single largest comes from ARPACK, tolerance relative to it. Start vectors come from `seed`, so a call is
    repeatable. Where k is nearly n, or n is small, `K` is applied to the identity and fully decomposed, which is cheaper.

    Examples:
        >>> values, vectors = top_eigenpairs(torch.diag(torch.tensor([1.0, 5.0, 2.0])), 2)
        >>> [round(v, 6) for v in values.tolist()]
        [2.0, 5.0]
    """
    n = int(K.shape[0]) if len(K.shape) else 0
    if tuple(K.shape) != (n, n) or not 1 <= k <= n:
        raise UsageError(
            f"the {k} largest eigenvalues of a matrix of shape {tuple(K.shape)}; expected (n, n), k from 1 to {n}"
        )
    device = K.device
    matrix: Multiplies = K.to(torch.float64) if isinstance(K, Tensor) else K

    def multiply(v: np.ndarray) -> np.ndarray:
        product = matrix @ torch.tensor(v, dtype=torch.float64, device=device)
        return product.detach().cpu().to(torch.float64).numpy()

    stored = bool(getattr(K, "out_of_core", False))
    if n <= (WHOLE if not stored else WHOLE // 4) or 2 * k + 1 >= n:
        values, vectors = _whole(multiply(np.eye(n)))
        order = np.argsort(values if by == "value" else np.abs(values))[-k:]
    elif stored or k > 1:
        return _all_copies(K, k, by, tolerance, max_iter, seed)
    else:
        start = numpy_generator(seed, "lanczos").standard_normal(n)
        image = multiply(start)
        if not np.isfinite(image).all():
            raise NumericalError(f"the {n} × {n} matrix maps a finite vector to NaN or infinity; check its entries")
        values, vectors = _arpack(multiply, start, k, by, tolerance, max_iter) if image.any() else _zeros(n, k)
        order = np.arange(k)
    order = order[np.argsort(values[order])]
    return torch.tensor(values[order], device=device), torch.tensor(vectors[:, order], device=device)


def _all_copies(
    K: Multiplies, k: int, by: str, tolerance: float, max_iter: int | None, seed: int
) -> tuple[Tensor, Tensor]:
    """By block Lanczos, until a check finds that none was missed."""
    end: End = "largest" if by == "value" else "magnitude"
    matrix = K if isinstance(K, Tensor) else getattr(K, "held", None)  # a tensor, or the one a DenseGram holds
    matrix = matrix.to(torch.float64) if isinstance(matrix, Tensor) and matrix.shape[0] <= PROOF else None
    limit = max_iter or PASSES
    found = block_eigenpairs(K, k, end=end, tolerance=tolerance, max_passes=limit, seed=seed)
    for attempt in range(ROUNDS):
        if not found.converged:
            break
        slack = 10 * max(tolerance, TOLERANCE) * float(found.values.abs().max())
        if matrix is not None and none_above(matrix, found.values, found.vectors, end, slack):
            return found.values, found.vectors
        if k == 1 and matrix is None:  # any copy of the largest will do
            return found.values, found.vectors
        again = seed + attempt + 1
        more = further_pairs(K, found, end, slack, tolerance=tolerance, max_passes=limit, seed=again)
        if more is None and matrix is None:
            return found.values, found.vectors
        if more is not None:
            found = _merged(K, k, found, more, end)
    if matrix is not None and max_iter is None:
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        order = (values if by == "value" else values.abs()).argsort()[-k:].sort().values
        return values[order], vectors[:, order]
    what = f"an {K.shape[0]} × {K.shape[0]} matrix" if isinstance(K, Tensor) else repr(K)
    raise NumericalError(
        f"block Lanczos did not find all of {k} eigenvalues of {what} after {found.passes} passes over it (largest"
        f" residual {float(found.residuals.max()):.2g}), or not every copy of repeated ones; raise max_iter or tolerance, ask"
        " for fewer, or for all of them (eigvalsh())"
    )


def _merged(K: Multiplies, k: int, found: EigenPairs, more: EigenPairs, end: End) -> EigenPairs:
    """The best k of both sets of pairs, by Rayleigh-Ritz in the space they span; one product."""
    basis = torch.linalg.qr(torch.cat([found.vectors, more.vectors], 1)).Q
    image = (K @ basis).to(torch.float64)
    core = basis.T @ image
    ritz, rotation = torch.linalg.eigh((core + core.T) / 2)
    best = (ritz if end == "largest" else ritz.abs()).argsort()[-k:].sort().values
    vectors = basis @ rotation[:, best]
    residuals = torch.linalg.vector_norm(image @ rotation[:, best] - vectors * ritz[best], dim=0)
    passes = found.passes + more.passes + 1
    return EigenPairs(ritz[best], vectors, residuals, passes, found.converged and more.converged)


def _whole(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not np.isfinite(matrix).all():
        raise NumericalError(f"the {matrix.shape} matrix holds NaN or infinity; it has no eigenvalues")
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return values, vectors


def _zeros(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs of the zero matrix, which ARPACK refuses."""
    return np.zeros(k), np.eye(n, k)


def _arpack(
    multiply: Any, start: np.ndarray, k: int, by: str, tolerance: float, max_iter: int | None
) -> tuple[np.ndarray, np.ndarray]:
    n = len(start)
    operator = LinearOperator((n, n), matvec=multiply, matmat=multiply, dtype=np.float64)
    which = "LA" if by == "value" else "LM"
    try:
        values, vectors = eigsh(operator, k=k, which=which, v0=start, tol=tolerance, maxiter=max_iter)
    except ArpackNoConvergence as error:
        raise NumericalError(
            f"Lanczos found {len(error.eigenvalues)} of {k} eigenvalues of an {n} × {n} matrix before its iterations"
            " ran out; raise max_iter or tolerance, or ask for fewer"
        ) from error
    except ArpackError as error:
        raise NumericalError(f"Lanczos failed on an {n} × {n} matrix: {error}") from error
    return values, vectors

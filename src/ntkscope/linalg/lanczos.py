"""Lanczos: a symmetric matrix, known by its products alone, seen through a small tridiagonal one."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.linalg.block_lanczos import block_eigenpairs
from ntkscope.linalg.multiplies import Multiplies

PASSES = 300


def lanczos(
    K: Multiplies, start: Float[Tensor, "n k"], steps: int
) -> tuple[Float[Tensor, "k n s"], Float[Tensor, "k s"], Float[Tensor, "k s"], Float[Tensor, "k n"]]:
    """`steps` of Lanczos from each column of `start` at once, fully reorthogonalised: `(Q, α, β, r)`, a row a column.

    For each `K Q = Q T + r e_sᵀ` with orthonormal Q, `T` tridiagonal with diagonal α and off-diagonal β[:-1], and
    `β[-1] = ‖r‖`. One product `K @ V` a step; memory `steps · n · k`. Where the Krylov space is exhausted β is exactly
    0 and the vectors after it are 0. Lanczos (1950).
    """
    n, k = start.shape
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


def top_eigenpairs(
    K: Multiplies,
    k: int,
    *,
    by: Literal["value", "magnitude"] = "value",
    tolerance: float = 0.0,
    max_iter: int | None = None,
    seed: int = 0,
) -> tuple[Float[Tensor, " k"], Float[Tensor, "n k"]]:
    """The `k` largest eigenvalues (by value or by magnitude), ascending, and eigenvectors as columns, in float64.

    Implicitly restarted Lanczos (ARPACK): about `2k` products `K @ v` a restart; for a Gram that is `out_of_core`, block
    Lanczos, whose `max_iter` are passes. `tolerance` is relative to each eigenvalue (to the largest for block Lanczos); 0
    means machine precision. The start vector comes from `seed`, so a call is repeatable. Where k is nearly n, or n is
    small, `K` is applied to the identity and decomposed whole: that is cheaper.

    >>> values, vectors = top_eigenpairs(torch.diag(torch.tensor([1.0, 5.0, 2.0])), 2)
    >>> [round(v, 6) for v in values.tolist()]
    [2.0, 5.0]
    """
    n = int(K.shape[0])
    if not 1 <= k <= n:
        raise UsageError(f"the {k} largest eigenvalues of an {n} × {n} matrix; expected k from 1 to {n}")
    device = K.device
    matrix: Multiplies = K.to(torch.float64) if isinstance(K, Tensor) else K

    def multiply(v: np.ndarray) -> np.ndarray:
        product = matrix @ torch.tensor(v, dtype=torch.float64, device=device)
        return product.detach().cpu().to(torch.float64).numpy()

    if getattr(K, "out_of_core", False) and n > 64 and 2 * k + 1 < n:
        return _few_passes(K, k, by, tolerance, max_iter, seed)
    if n <= 64 or 2 * k + 1 >= n:
        values, vectors = _whole(multiply(np.eye(n)))
        order = np.argsort(values if by == "value" else np.abs(values))[-k:]
    else:
        start = numpy_generator(seed, "lanczos").standard_normal(n)
        image = multiply(start)
        if not np.isfinite(image).all():
            raise NumericalError(f"the {n} × {n} matrix maps a finite vector to NaN or infinity; check its entries")
        values, vectors = _arpack(multiply, start, k, by, tolerance, max_iter) if image.any() else _zeros(n, k)
        order = np.arange(k)
    order = order[np.argsort(values[order])]
    return torch.tensor(values[order], device=device), torch.tensor(vectors[:, order], device=device)


def _few_passes(
    K: Multiplies, k: int, by: str, tolerance: float, max_iter: int | None, seed: int
) -> tuple[Tensor, Tensor]:
    end: Literal["largest", "magnitude"] = "largest" if by == "value" else "magnitude"
    found = block_eigenpairs(K, k, end=end, tolerance=tolerance, max_passes=max_iter or PASSES, seed=seed)
    if not found.converged:
        raise NumericalError(
            f"block Lanczos had not found all of {k} eigenvalues of {K!r} after {found.passes} passes over it (largest"
            f" residual {float(found.residuals.max()):.2g}); raise max_iter or tolerance, or ask for fewer"
        )
    return found.values, found.vectors


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

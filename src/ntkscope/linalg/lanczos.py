"""The largest eigenpairs of a symmetric matrix that is known by its products alone."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, numpy_generator


@runtime_checkable
class Multiplies(Protocol):
    """Anything with a shape, a device and `K @ v`: every Gram, and every square Tensor."""

    @property
    def shape(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    def __matmul__(self, v: Any) -> Any: ...


def top_eigenpairs(
    K: Multiplies, k: int, *, tolerance: float = 0.0, max_iter: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The `k` largest eigenvalues, ascending, and their eigenvectors as columns, in float64, by implicitly restarted
    Lanczos (ARPACK).

    About `2k` products `K @ v` a restart. `tolerance` is relative to each eigenvalue; 0 means machine precision. The
    start vector comes from `seed`, so a call is repeatable. Where k is nearly n, or n is small, the matrix is
    applied to the identity and decomposed whole: that is cheaper.

    >>> values, vectors = top_eigenpairs(torch.diag(torch.tensor([1.0, 5.0, 2.0])), 2)
    >>> [round(v, 6) for v in values.tolist()]
    [2.0, 5.0]
    """
    n = int(K.shape[0])
    if not 1 <= k <= n:
        raise UsageError(f"the {k} largest eigenvalues of an {n} × {n} matrix; expected k from 1 to {n}")
    device = K.device

    def multiply(v: np.ndarray) -> np.ndarray:
        wide = torch.as_tensor(np.ascontiguousarray(v, dtype=np.float64), device=device)
        product = (K.to(torch.float64) if isinstance(K, Tensor) else K) @ wide
        return product.detach().cpu().to(torch.float64).numpy()

    if n <= 64 or 2 * k + 1 >= n:
        whole = multiply(np.eye(n))
        if not np.isfinite(whole).all():
            raise NumericalError(f"the {n} × {n} matrix holds NaN or infinity; it has no eigenvalues")
        values, vectors = np.linalg.eigh((whole + whole.T) / 2)
        values, vectors = values[-k:], vectors[:, -k:]
    else:
        start = numpy_generator(seed, "lanczos").standard_normal(n)
        image = multiply(start)
        if not np.isfinite(image).all():
            raise NumericalError(f"the {n} × {n} matrix maps a finite vector to NaN or infinity; check its entries")
        if not image.any():  # ARPACK refuses the zero matrix
            values, vectors = np.zeros(k), np.eye(n, k)
        else:
            operator = LinearOperator((n, n), matvec=multiply, matmat=multiply, dtype=np.float64)
            try:
                values, vectors = eigsh(operator, k=k, which="LA", v0=start, tol=tolerance, maxiter=max_iter)
            except ArpackNoConvergence as error:
                raise NumericalError(
                    f"Lanczos found {len(error.eigenvalues)} of {k} eigenvalues of an {n} × {n} matrix before its"
                    " iterations ran out; raise max_iter or tolerance, or ask for fewer"
                ) from error
            except ArpackError as error:
                raise NumericalError(f"Lanczos failed on an {n} × {n} matrix: {error}") from error
        order = np.argsort(values)
        values, vectors = values[order], vectors[:, order]
    return torch.tensor(values, device=device), torch.tensor(vectors, device=device)

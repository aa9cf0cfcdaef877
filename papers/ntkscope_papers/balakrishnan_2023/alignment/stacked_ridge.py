"""Kernel ridge regression of many kernels at many strengths at once, by one blocked Cholesky factorisation of the stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

BLOCK = 256  # columns at a time; a longer block where few large matrices are solved


@dataclass(frozen=True, eq=False)
class RidgeFits:
    """Predictions of every kernel at the strength with the least squared error on the validation points."""

    predictions: Float64[Tensor, "k m"]
    chosen: Int64[Tensor, " k"]
    errors: Float64[Tensor, "k s"]
    """Mean squared errors on the validation points; infinite where rounding left the system indefinite."""


def ridge_fits(
    K: Float64[Tensor, "k n n"],
    y: Float64[Tensor, "k n"],
    validation: tuple[Float64[Tensor, "k v n"], Float64[Tensor, "k v"]],
    K_test: Float64[Tensor, "k m n"],
    strengths: Sequence[float],
) -> RidgeFits:
    """`f(x) = b + κ(x, X) c`, `(H K H + α I) c = H y`, b free, as `KernelRidgeLOO`; O(k s n³/3).

    `strengths` are multiples of the mean diagonal of the centred kernel H K H. Of equal errors the larger strength wins.
    """
    k, n, _ = K.shape
    mean = K.mean(-1, keepdim=True)
    H = K - mean - mean.mT + mean.mean(-2, keepdim=True)
    unit = H.diagonal(dim1=-2, dim2=-1).mean(-1)
    alphas = unit[:, None] * torch.tensor(list(strengths), dtype=K.dtype, device=K.device)
    s = alphas.shape[1]
    systems = H[:, None].repeat(1, s, 1, 1)
    systems.diagonal(dim1=-2, dim2=-1).add_(alphas[..., None])
    z = y - y.mean(-1, keepdim=True)
    c = solve_stack(systems.view(k * s, n, n), z[:, None].expand(k, s, n).reshape(k * s, n)).view(k, s, n)
    del systems
    b = y.mean(-1)[:, None] - (mean.mT @ c.mT)[:, 0]  # the mean of y - K c
    K_held, y_held = validation
    errors = (c @ K_held.mT + b[..., None] - y_held[:, None]).square().mean(-1)
    errors = torch.where(torch.isfinite(errors), errors, torch.inf)
    best = s - 1 - errors.flip(-1).argmin(-1)
    rows = torch.arange(k, device=K.device)
    predictions = (K_test @ c[rows, best][..., None])[..., 0] + b[rows, best][:, None]
    return RidgeFits(predictions, best, errors)


def solve_stack(
    A: Float64[Tensor, "k n n"], y: Float64[Tensor, "k n"], block: int | None = None
) -> Float64[Tensor, "k n"]:
    """`A⁻¹ y` for a stack of positive definite matrices, of which the lower halves are overwritten by their factors.

    Blocks of columns, each step a product of the whole stack: on a GPU the factorisation of one small matrix after the other
    leaves it idle. NaN for a matrix that is not positive definite; O(k n³/3).
    """
    n = A.shape[-1]
    block = max(BLOCK, n // 8) if block is None else block
    z = y.clone()[..., None]
    starts = range(0, n, block)
    for start in starts:
        end = min(start + block, n)
        corner, failed = torch.linalg.cholesky_ex(A[:, start:end, start:end])
        corner = torch.where((failed == 0)[:, None, None], corner, torch.nan)
        A[:, start:end, start:end] = corner
        z[:, start:end] = torch.linalg.solve_triangular(corner, z[:, start:end], upper=False)
        if end == n:
            break
        below = torch.linalg.solve_triangular(corner.mT, A[:, end:, start:end], upper=True, left=False)
        A[:, end:, start:end] = below
        z[:, end:] -= below @ z[:, start:end]
        for column in range(end, n, block):  # the lower half alone
            last = min(column + block, n)
            A[:, column:, column:last] -= below[:, column - end :] @ below[:, column - end : last - end].mT
    for start in reversed(starts):
        end = min(start + block, n)
        rest = z[:, start:end] - A[:, end:, start:end].mT @ z[:, end:]
        z[:, start:end] = torch.linalg.solve_triangular(A[:, start:end, start:end].mT, rest, upper=True)
    return z[..., 0]

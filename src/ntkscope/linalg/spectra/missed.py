"""Whether all eigenpairs at one end of a spectrum were found: Krylov methods tend to lose repeated eigenvalues.

From one start vector a Krylov space holds one vector of each eigenspace, from a block of b at most b: further copies come
from rounding, or not at all, and every residual is small. Two checks see that: a Cholesky factorisation, which is Sylvester's
law of inertia for definite matrices and a proof up to rounding, where the matrix is in memory; and block Lanczos from a
random block orthogonal to what was found, which misses a copy with probability zero, where there are products alone.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.linalg.grams.linear_map import Multiplies
from ntkscope.linalg.spectra.block_lanczos import EigenPairs, End, block_eigenpairs

CHECK_BLOCK = 16


class Outside:
    """`P (K - shift) P + aside U Uᵀ` with `P = I - U Uᵀ`: the part of K outside the span of U, with that span set aside."""

    def __init__(self, K: Multiplies, vectors: Float[Tensor, "n k"], shift: float = 0.0, aside: float = 0.0) -> None:
        self._matrix, self._vectors, self._shift, self._aside = K, vectors, shift, aside
        self.shape, self.device = K.shape, K.device

    def project(self, v: Tensor) -> Tensor:
        for _ in range(2):
            v = v - self._vectors @ (self._vectors.T @ v)
        return v

    def __matmul__(self, v: Tensor) -> Tensor:
        inside = self.project(v)
        image = self.project((self._matrix @ inside).to(torch.float64) - self._shift * inside)
        return image if self._aside == 0 else image + self._aside * (v - inside)


def none_above(matrix: Float[Tensor, "n n"], values: Tensor, vectors: Tensor, end: End, slack: float) -> bool:
    """Whether no eigenvalue of the symmetric `matrix` is further out than `values` by more than `slack`; O(n³/3).

    With the found pairs taken out, `σ I - K` (and `σ I + K` by magnitude) is positive definite exactly then.
    """
    edge = float(values.abs().min() if end == "magnitude" else values.min() if end == "largest" else values.max())
    kept = 0.0 if end == "magnitude" else edge
    rest = matrix - (vectors * (values - kept)) @ vectors.T
    for sign in {"largest": (1,), "smallest": (-1,), "magnitude": (1, -1)}[end]:
        gap = -sign * rest
        gap.diagonal().add_((edge if end == "magnitude" else sign * edge) + slack)
        if int(torch.linalg.cholesky_ex(gap).info):
            return False
    return True


def further_pairs(
    K: Multiplies, found: EigenPairs, end: End, slack: float, *, tolerance: float, max_passes: int, seed: int
) -> EigenPairs | None:
    """Pairs orthogonal to those found that are further out than the nearest of them; None if there are none.

    Block Lanczos from a random block outside the span of the found vectors. It ends as soon as its best Ritz value is
    clearly further in than all that was found, and not before eight passes.
    """
    values = found.values
    edge = float(values.abs().min() if end == "magnitude" else values.min() if end == "largest" else values.max())
    shift = 0.0 if end == "magnitude" else edge
    known = found.vectors if found.guards is None else torch.cat([found.vectors, found.guards], 1)
    far = {"largest": -1.0, "smallest": 1.0, "magnitude": 0.0}[end] * float(values.abs().max())
    outside = Outside(K, known, shift, far)  # without the guards too: further in, near the edge they only delay
    room = K.shape[0] - known.shape[1]
    more = block_eigenpairs(
        outside,
        min(CHECK_BLOCK // 2, room),
        end=end,
        tolerance=tolerance,
        max_passes=max_passes,
        block=min(CHECK_BLOCK, K.shape[0]),
        seed=seed,
        scale=float(values.abs().max()),
        inside=edge if end == "magnitude" else 0.0,
    )
    best = more.values + shift
    ahead = best.abs() - edge if end == "magnitude" else best - edge if end == "largest" else edge - best
    wanted = ahead > slack
    if not bool(wanted.any()):
        return None
    vectors, residuals = more.vectors[:, wanted], more.residuals[wanted]
    return EigenPairs(best[wanted], vectors, residuals, more.passes, more.converged)

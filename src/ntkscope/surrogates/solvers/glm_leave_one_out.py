"""Leave-one-out logits of a kernel GLM: one Newton step from the optimum per training point."""

from __future__ import annotations

import torch
from torch import Tensor

from ntkscope.linalg import Gram
from ntkscope.surrogates._base import Array, as_array
from ntkscope.surrogates.solvers.leading import Leading, coupled_inverse, shifted
from ntkscope.surrogates.solvers.losses import Loss, Softmax


def glm_leave_one_out(gram: Gram, leading: Leading, loss: Loss, alpha: float, theta: Tensor, bias: bool) -> Array:
    """Approximate leave-one-out logits, (n, classes).

    Leaving out point i removes its term of the loss and its column: W_i becomes 0. With H the Hessian at the optimum,
    k_i the i-th kernel row (and the bias), D_i and r_i the second and first derivatives of its loss term, the step is
    the minimiser of `½ δᵀ(H - k_i D_i k_iᵀ)δ - r_iᵀ k_iᵀ δ` under `δ_i = -W_i`; closed form by Woodbury and one
    Lagrange multiplier per class. H⁻¹ is exact within the leading directions and `1/α` across them.
    """
    c = loss.targets.shape[1]
    scores = gram @ theta[:-1] + theta[-1]
    residual = loss.residual(scores)
    blocks = loss.blocks(scores)
    inner = _Inverse(gram, leading, shifted(loss, scores), alpha, bias)
    a, t, q = inner.products()
    eye = torch.eye(c, dtype=a.dtype, device=a.device)
    # (H - k D kᵀ)⁻¹ = H⁻¹ + H⁻¹ k M kᵀ H⁻¹
    m = blocks @ torch.linalg.inv(eye - a @ blocks)
    a_out, t_out, q_out = a + a @ m @ a, t + a @ m @ t, q + t.mT @ m @ t
    pull = residual[:, :, None]
    own = theta[:-1][:, :, None]
    multiplier = torch.linalg.solve(q_out, t_out.mT @ pull + own)
    out = scores + (a_out @ pull - t_out @ multiplier)[:, :, 0]
    if isinstance(loss, Softmax):
        out = out - out.mean(1, keepdim=True) + scores.mean(1, keepdim=True)
    if c == 1:  # one loss of the difference of two logits
        out = torch.cat([-out / 2, out / 2], dim=1)
    return as_array(out)


class _Inverse:
    """`H⁻¹ ≈ B H_r⁻¹ Bᵀ + (I - U Uᵀ)/α`, B the leading directions and the bias, all classes together."""

    def __init__(self, gram: Gram, leading: Leading, blocks: Tensor, alpha: float, bias: bool) -> None:
        n, c, _ = blocks.shape
        self.alpha, self.classes = alpha, c
        features, vectors = leading.features, leading.vectors
        ones = features.new_ones(n, 1) if bias else features.new_zeros(n, 0)
        self.rows = torch.cat([features, ones], dim=1)
        """k_i in the basis B."""
        self.units = torch.cat([vectors, torch.zeros_like(ones)], dim=1)
        """e_i in the basis B."""
        self.inverse = coupled_inverse(features, blocks, alpha, bias)
        kept = leading.vectors.square().sum(1)
        self.unit_rest = (1 - kept).clamp_min(0)
        self.cross_rest = gram.diagonal().to(torch.float64) - (features * vectors).sum(1)
        self.row_rest = (_row_norms(gram) - features.square().sum(1)).clamp_min(0)

    def products(self) -> tuple[Tensor, Tensor, Tensor]:
        """`kᵀH⁻¹k`, `kᵀH⁻¹e` and `eᵀH⁻¹e`, each (n, c, c)."""
        return (
            self._between(self.rows, self.rows, self.row_rest),
            self._between(self.rows, self.units, self.cross_rest),
            self._between(self.units, self.units, self.unit_rest),
        )

    def _between(self, left: Tensor, right: Tensor, rest: Tensor) -> Tensor:
        c = self.classes
        out = left.new_empty(len(left), c, c)
        for i in range(c):
            for j in range(c):
                out[:, i, j] = ((left @ self.inverse[i, :, j]) * right).sum(1)
        out.diagonal(dim1=1, dim2=2).add_(rest[:, None] / self.alpha)
        return out


def _row_norms(gram: Gram) -> Tensor:
    """`Σ_j K_ij²` in float64, tile by tile."""
    total = torch.zeros(gram.shape[0], dtype=torch.float64, device=gram.device)
    for rows, _, values in gram.tiles(1024):
        total[rows] += values.to(torch.float64).square().sum(1)
    return total

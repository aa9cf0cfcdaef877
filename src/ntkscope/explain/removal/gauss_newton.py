"""Gauss-Newton influence: one step of retraining the network itself, linearised, computed in the kernel's n·c coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import softmax
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.explain.removal.influences import BLOCK, Directions, Influence, Rows, Scores
from ntkscope.explain.removal.ridge_inverse import Inverse, inverse_of, strength_of
from ntkscope.linalg import DenseGram, Gram, OperatorGram
from ntkscope.linalg.spectra.band import lapack_is_safe


@final
@dataclass(frozen=True, eq=False, repr=False)
class GaussNewtonInfluence(Influence):
    """`S(x, i) = J_x (Σ_j J_jᵀ A_j J_j + λ I)⁻¹ J_iᵀ (y_i - p_i)`, `A = diag(p) - p pᵀ`, J the gradients of the outputs.

    With `B = A^{1/2}` per point (A itself has no inverse), `K = J Jᵀ` of n·c rows and M what is inverted above:
    `J_x M⁻¹ Jᵀ = (K_x - K_x B (B K B + λ)⁻¹ B K) / λ`.
    To first order in the removed point, so groups add up. Holds both kernels and the solver.
    """

    kernel: Gram
    train: Gram
    solver: Inverse
    roots: Float64[Tensor, "n c c"]
    residuals: Float64[Tensor, "n c"]
    alpha: float
    given: Float64[np.ndarray, "m c"] | None
    method: str = "gauss-newton"

    @property
    def shape(self) -> tuple[int, int, int]:
        n, c = self.residuals.shape
        return (self.kernel.shape[0] // self.kernel.outputs, n, c)

    @property
    def logits(self) -> Float64[np.ndarray, "m c"]:
        if self.given is None:
            raise UsageError(
                "got no logits of the test items, which the margin and the predicted class need; expected"
                " influence(…, method='gauss-newton', logits=the network's outputs at the test items)"
            )
        return self.given

    def along(self, rows: Rows, directions: Directions) -> Scores:
        """O((n c)²) per test item and direction where `B K B` is formed."""
        b, k, c = directions.shape
        n = len(self.residuals)
        kernel = self._rows(rows, torch.from_numpy(directions).to(self.residuals.device)).reshape(b * k, n * c)
        solved = self.solver.solve(rooted(self.roots, kernel.T).contiguous())
        inner = (kernel - kernel_product(self.train, rooted(self.roots, solved), c).T) / self.alpha
        return (inner.reshape(b, k, n, c) * self.residuals).sum(3).cpu().numpy()

    def without(self, points: Any) -> Float64[np.ndarray, "m c"]:
        """Minus the sum of the points' influences: this method is of first order in what is removed."""
        group = self._points(points)
        m, _, c = self.shape
        found = np.zeros((m, c))
        for rows in self._blocks(c):
            along = self.along(rows, np.broadcast_to(np.eye(c), (len(rows), c, c)).copy())
            found[rows] = -along[:, :, group].sum(2)
        return found

    def _rows(self, rows: Rows, directions: Float64[Tensor, "b k c"]) -> Float64[Tensor, "b k n c"]:
        """`Σ_c v_c κ((x, c), ·)`; a kernel of one row per sample stands for every output alike."""
        n, c = self.residuals.shape
        if self.kernel.outputs == 1:
            values = self.kernel[rows.tolist()].dense().detach().to(torch.float64)
            return torch.einsum("bn,bkc->bknc", values, directions)
        chosen = (rows[:, None] * c + np.arange(c)).reshape(-1)
        values = self.kernel[chosen.tolist()].dense().detach().to(torch.float64)
        return torch.einsum("bcm,bkc->bkm", values.reshape(len(rows), c, n * c), directions).reshape(
            *directions.shape[:2], n, c
        )

    def _blocks(self, directions: int) -> Any:
        """Fewer test items at a time: every direction takes n · c numbers."""
        step = max(1, BLOCK // max(1, self.shape[1] * self.shape[2] * directions))
        return (np.arange(len(self))[start : start + step] for start in range(0, len(self), step))


def gauss_newton_influence(
    K_train: Gram,
    K_test: Gram,
    targets: Float64[np.ndarray, "n c"],
    train_logits: Float64[np.ndarray, "n c"],
    alpha: float | int | None,
    logits: Float64[np.ndarray, "m c"] | None,
) -> GaussNewtonInfluence:
    """The influence on a network of these outputs; `alpha=None`: λ is the mean diagonal of `B K B`."""
    device = K_train.device
    p = torch.from_numpy(softmax(train_logits, axis=1)).to(device)
    residuals = torch.from_numpy(targets).to(device) - p
    roots = _roots(p)
    system, mean = _rooted_gram(K_train, roots)
    strength = strength_of(alpha, mean)
    return GaussNewtonInfluence(
        K_test.to(device=device), K_train, inverse_of(system, strength), roots, residuals, strength, logits
    )


def _roots(p: Float64[Tensor, "n c"]) -> Float64[Tensor, "n c c"]:
    """`(diag(p) - p pᵀ)^{1/2}` of each point, symmetric; rounding below zero is zero."""
    values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None])
    return (vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT


def _rooted_gram(gram: Gram, roots: Float64[Tensor, "n c c"]) -> tuple[Gram, float]:
    """`B K B`, formed where it fits in memory, and the mean of its diagonal."""
    n, c, _ = roots.shape
    own = _diagonal_blocks(gram, c)
    mean = float(torch.einsum("ncd,nde,nec->n", roots, own, roots).sum() / (n * c))
    if lapack_is_safe(n * c, gram.device):
        values = gram.dense().detach().to(torch.float64)
        values = (
            values
            if gram.outputs == c and c > 1
            else torch.kron(values, torch.eye(c, dtype=values.dtype, device=values.device))
        )
        left = rooted(roots, values)
        both = rooted(roots, left.T)
        return DenseGram((both + both.T) / 2, symmetric=True), mean
    diagonal = torch.einsum("ncd,nde,nec->nc", roots, own, roots).reshape(-1)
    return (
        OperatorGram(
            (n * c, n * c),
            lambda v: rooted(roots, kernel_product(gram, rooted(roots, v), c)),
            diagonal=diagonal,
            dtype=torch.float64,
            device=gram.device,
            symmetric=True,
        ),
        mean,
    )


def _diagonal_blocks(gram: Gram, c: int) -> Float64[Tensor, "n c c"]:
    """The kernel of each point's outputs among themselves."""
    if gram.outputs == 1:
        own = gram.diagonal().to(torch.float64)
        return own[:, None, None] * torch.eye(c, dtype=own.dtype, device=own.device)
    n = gram.shape[0] // c
    return torch.stack(
        [gram[i * c : (i + 1) * c, i * c : (i + 1) * c].dense().detach().to(torch.float64) for i in range(n)]
    )


def rooted(roots: Float64[Tensor, "n c c"], columns: Float64[Tensor, "nc k"]) -> Float64[Tensor, "nc k"]:
    """`B v` with B block-diagonal."""
    n, c, _ = roots.shape
    return torch.bmm(roots, columns.reshape(n, c, -1)).reshape(n * c, -1)


def kernel_product(gram: Gram, columns: Float64[Tensor, "nc k"], c: int) -> Float64[Tensor, "nc k"]:
    """`K v`; a kernel of one row per sample acts on every output alike."""
    if gram.outputs == c and c > 1:
        return gram @ columns
    n = gram.shape[0]
    return (gram @ columns.reshape(n, -1)).reshape(n * c, -1)

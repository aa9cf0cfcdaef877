"""Early training: how a layer's centred feature matrices grow from zero, how they correlate, and what predicts it.

With W̄ the change of a layer's weights and K = Σ b bᵀ over its pre-activation gradients b, W̄ᵀW̄ and W̄ᵀKW̄ start at zero with
zero slope, and their second derivatives along gradient flow are `2 ẆᵀẆ` and `2 ẆᵀKẆ` (Prop. 3). Beaglehole, Mitliagkas &
Agarwala, "Gradient descent induces alignment between weights and the pre-activation tangents for deep non-linear networks"
(2024), section 3 and appendices A, C to F. Where the paper errs, the corrected form is computed:

- K carries no 1/n in Prop. 4, but needs one in AGOP = WᵀKW; correlations do not see it.
- f = a·(Wx)² has slope 2Wx, so its kernel is 4XRXᵀ with R = Wᵀ diag(a²) W; the constants of Prop. 10 gain 4 and 16.
- Prop. 10: `E[RBR] = (3/k) Tr(B) I + (1 + 5/k) B`; printed are 3 and 6, from equal hidden units alone and without their 1/k.
- Eq. 10 has its denominators' exponents inverted; it is Eq. 4.
- Eq. 19's last term is tr(A)² tr(B) tr(R³), Eq. 28's tr[B]² tr[Ā²] tr[R²]².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.linalg import matrix_correlation
from ntkscope_papers.beaglehole_2024 import free_products as free
from ntkscope_papers.beaglehole_2024 import gaussian_words as gaussian
from ntkscope_papers.beaglehole_2024.expected_kernel import expected_kernel
from ntkscope_papers.beaglehole_2024.free_products import Traces

Inputs = Float64[Tensor, "n d"]
PerInput = Float64[Tensor, " n"]  # labels, or derivatives of the loss


@dataclass(frozen=True, eq=False)
class EarlyTime:
    """`nfm` = ẆᵀẆ and `agop` = ẆᵀKẆ at the start: half the second derivatives of W̄ᵀW̄ and W̄ᵀKW̄ (Prop. 3)."""

    nfm: Float64[Tensor, "d d"]
    agop: Float64[Tensor, "d d"]

    @property
    def correlation(self) -> float:
        """ρ(ẆᵀẆ, ẆᵀKẆ): what the centred correlation starts at. In [0, 1], and 1 if 𝒦² ∝ 𝒦."""
        return matrix_correlation(self.nfm, self.agop)

    @property
    def traces(self) -> Traces:
        """Normalised traces of nfm·agop, nfm² and agop² (Eq. 4)."""
        d = len(self.nfm)
        pairs = ((self.nfm, self.agop), (self.nfm, self.nfm), (self.agop, self.agop))
        return Traces(*(float((p * q).sum()) / d for p, q in pairs))


def weight_velocity(inputs: Tensor, tangents: Tensor, loss_derivatives: Tensor) -> Float64[Tensor, "out in"]:
    """Ẇ = -Σ_i Σ_c (∂L/∂f_ic) b_ic a_iᵀ, a layer's weights under gradient flow; O(n c · in · out).

    `inputs` a: (n, in). `tangents` b = ∂f/∂h: (n, out), or (n, c, out) if `loss_derivatives` is (n, c). Appendix A, for any
    loss and number of outputs; descent's minus sign, which the text omits, cancels in pairs.

    >>> weight_velocity(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]]), torch.tensor([0.5]))
    tensor([[-1.5000, -3.0000]])
    """
    d = loss_derivatives.reshape(len(inputs), -1)
    b = tangents.reshape(*d.shape, 1, -1)
    return -torch.einsum("nc,ncso,nsi->oi", d, b, inputs[:, None])


def feature_derivatives(inputs: Tensor, tangents: Tensor, loss_derivatives: Tensor) -> EarlyTime:
    """ẆᵀẆ and ẆᵀKẆ of one layer from its inputs and tangents, with K = Σ b bᵀ; O(n c · out · (in + out)).

    Arguments as for `weight_velocity`. The same as `derivatives_from_kernel` of the rows (i, c), without a square matrix
    of their number.
    """
    velocity = -weight_velocity(inputs, tangents, loss_derivatives)
    rows = tangents.reshape(-1, tangents.shape[-1])
    return EarlyTime(velocity.T @ velocity, velocity.T @ (rows.T @ rows) @ velocity)


def derivatives_from_kernel(X: Inputs, kernel: Float64[Tensor, "n n"], loss_derivatives: PerInput) -> EarlyTime:
    """ẆᵀẆ = XᵀD𝒦DX and ẆᵀKẆ = XᵀD𝒦²DX (Prop. 4, Eq. 3), D the diagonal of ∂L/∂f; O(n² d).

    `kernel` 𝒦: inner products of pre-activation gradients. With squared error and a network that starts at zero, D is the
    labels (up to sign) and `.correlation` is Eq. 4. Rows of several outputs: one each, their inputs repeated.
    """
    weighted = loss_derivatives[:, None] * X
    moved = kernel @ weighted
    return EarlyTime(weighted.T @ moved, moved.T @ moved)


def quadratic_kernel(X: Inputs, W: Tensor, a: Tensor) -> Float64[Tensor, "n n"]:
    """𝒦 = 4 X Wᵀ diag(a²) W Xᵀ of f = a·(Wx)²; O(nk(n + d)). Appendix E prints it without the 4, which is f = a·(Wx)²/2."""
    tangents = 2 * (X @ W.T) * a
    return tangents @ tangents.T


def _data_matrices(X: Inputs, y: PerInput) -> tuple[Tensor, Tensor]:
    """S = XᵀYX and B = XᵀX."""
    return X.T @ (y[:, None] * X), X.T @ X


def quadratic_traces(X: Inputs, y: PerInput, W: Tensor, a: Tensor) -> Traces:
    """The three traces of Eq. 4 for one network f = a·(Wx)²: tr(ARARBR), tr(ARAR), tr(ARBRARBR) (Eqs. 16, 17, 21, 23).

    A = (XᵀYX)², B = XᵀX, R = Wᵀ diag(a²) W; exact for any sizes, in O(d²(n + k + d)). The kernel's factor 4 is left out.
    """
    S, B = _data_matrices(X, y)
    scaled = a[:, None] * W
    return free.word_traces(S @ S, B, scaled.T @ scaled)


@dataclass(frozen=True)
class QuadraticPrediction:
    """What free probability predicts for f = a·(Wx)²: the traces, and those with Eq. 28 as it was printed."""

    traces: Traces
    printed: Traces

    @property
    def correlation(self) -> float:
        """ρ(ẆᵀẆ, ẆᵀKẆ), in [0, 1]."""
        return self.traces.correlation

    @property
    def printed_correlation(self) -> float:
        """With Eq. 28 as printed: it may exceed 1, and is NaN where the printed denominator is negative."""
        return self.printed.correlation


def quadratic_prediction(
    X: Inputs, y: PerInput, *, moments: Sequence[float] = (), width: int = 0
) -> QuadraticPrediction:
    """ρ(ẆᵀẆ, ẆᵀKẆ) of f = a·(Wx)² at the start, from the data and the moments tr[R] … tr[R⁴] alone; O(d²(n + d)).

    `moments`: drawn ones; or the `width`, for their limits, `free_moments`. Assumes that R is free of the data, that one
    network is like the average one, and that means may be taken inside the ratio (Assumptions 7 to 9): exact as n, d and k
    grow together. Eqs. 20, 22 and 28.
    """
    S, B = _data_matrices(X, y)
    data, r = free.DataTraces.of(S @ S, B), moments or free.free_moments(len(S), width)
    return QuadraticPrediction(free.predicted_traces(data, r), free.predicted_traces(data, r, printed=True))


def isotropic_numerator(X: Inputs, y: PerInput, moments: Sequence[float]) -> float:
    """Eq. 6, the numerator for XᵀX = I: `tr[A]² tr[R³] + tr[R] tr[R²] tr[Ā²]`; traces normalised, which the text omits."""
    S, B = _data_matrices(X, y)
    data = free.DataTraces.of(S @ S, B)
    return data.a**2 * moments[2] + moments[0] * moments[1] * data.aa


def expected_derivatives(X: Inputs, y: PerInput, width: int) -> EarlyTime:
    """E[ẆᵀẆ] = 4 S² and E[ẆᵀKẆ] = 16 ((3/k) Tr(B) S² + (1 + 5/k) SBS), S = XᵀYX and B = XᵀX; O(d²(n + d)).

    Of f = a·(Wx)², a ~ N(0, 1), W ~ N(0, 1/k), for any width k: Prop. 10 corrected, and the mean term of Eq. 5.
    """
    S, B = _data_matrices(X, y)
    square = S @ S
    return EarlyTime(4 * square, 16 * (3 / width * B.trace() * square + (1 + 5 / width) * (S @ B @ S)))


def expected_traces(X: Inputs, y: PerInput, width: int) -> Traces:
    """E of the three traces of `quadratic_traces` over a ~ N(0, 1) and W ~ N(0, 1/k), exact for any n, d and k; O(d²(n + d)).

    Both terms of Eq. 5: the trace of the product of means (`expected_derivatives`) and the covariance. `.correlation` predicts
    as `quadratic_prediction` does, without its assumption that R is free of the data (Assumption 8), but still takes means
    inside the ratio (Assumption 9): single networks may correlate more where one direction of X dominates.
    """
    S, B = _data_matrices(X, y)
    words = gaussian.words_of(S @ S, B)
    return Traces(*(gaussian.mean_word(word, words, width) / len(S) for word in ("AAB", "AA", "ABAB")))


def first_order_prediction(X: Inputs, y: PerInput, **network: Any) -> EarlyTime:
    """The two matrices with 𝒦 replaced by its mean: XᵀY E[𝒦] YX and XᵀY E[𝒦]² YX; O(n²(n + d)). Appendix C.

    `network` says which one, as for `expected_kernel`. What it leaves out is how 𝒦 varies from network to network, which
    vanishes as the width grows.
    """
    return derivatives_from_kernel(X, expected_kernel(X, **network), y)

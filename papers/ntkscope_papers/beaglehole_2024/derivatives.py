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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import tensor_of
from ntkscope.linalg import matrix_correlation
from ntkscope_papers.beaglehole_2024 import free_products as free
from ntkscope_papers.beaglehole_2024 import gaussian_words as gaussian
from ntkscope_papers.beaglehole_2024.expected_kernel import expected_kernel
from ntkscope_papers.beaglehole_2024.free_products import DrawnMoments, Traces


@dataclass(frozen=True, eq=False)
class EarlyTime:
    """`nfm` = ẆᵀẆ and `agop` = ẆᵀKẆ at the start: half the second derivatives of W̄ᵀW̄ and W̄ᵀKW̄ (Prop. 3)."""

    nfm: Float64[Tensor, "d d"]
    agop: Float64[Tensor, "d d"]

    def __post_init__(self) -> None:
        if not all(math.isfinite(matrix.abs().max()) for matrix in (self.nfm, self.agop)):
            raise NumericalError("products of these arguments overflow float64; expected smaller ones: divide them")

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


def weight_velocity(inputs: Any, tangents: Any, loss_derivatives: Any) -> Float64[Tensor, "out in"]:
    """Ẇ = -Σ_i Σ_c Σ_s (∂L/∂f_ic) b_ics a_isᵀ, a layer's weights under gradient flow; O(n c s · in · out).

    `inputs` a: (n, in), or (n, s, in) for a layer applied at s positions (patches of a convolution, tokens). `tangents`
    b = ∂f/∂h: (n, out), with an axis c before the positions if `loss_derivatives` is (n, c), and one for the positions if
    inputs have it. Appendix A, for any layer, loss and number of outputs; descent's minus sign, which the text omits,
    cancels in pairs.

    >>> weight_velocity([[1.0, 2.0]], [[3.0]], [0.5])
    tensor([[-1.5000, -3.0000]], dtype=torch.float64)
    """
    a, b, d = _layer(inputs, tangents, loss_derivatives)
    return -torch.einsum("nc,ncso,nsi->oi", d, b, a)


def feature_derivatives(inputs: Any, tangents: Any, loss_derivatives: Any) -> EarlyTime:
    """ẆᵀẆ and ẆᵀKẆ of one layer from its inputs and tangents, with K = Σ b bᵀ; O(n c s · out · (in + out)).

    Arguments as for `weight_velocity`. The same as `derivatives_from_kernel` of the rows (i, c, s), without a square matrix
    of their number.

    >>> feature_derivatives([[1.0], [1.0]], [[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0]).agop
    tensor([[17.]], dtype=torch.float64)
    """
    a, b, d = _layer(inputs, tangents, loss_derivatives)
    velocity = torch.einsum("nc,ncso,nsi->oi", d, b, a)
    rows = b.reshape(-1, b.shape[-1])
    return EarlyTime(velocity.T @ velocity, velocity.T @ (rows.T @ rows) @ velocity)


def derivatives_from_kernel(X: Any, kernel: Any, loss_derivatives: Any) -> EarlyTime:
    """ẆᵀẆ = XᵀD𝒦DX and ẆᵀKẆ = XᵀD𝒦²DX (Prop. 4, Eq. 3), D the diagonal of ∂L/∂f; O(n² d).

    `kernel` 𝒦: (n, n), inner products of pre-activation gradients. With squared error and a network that starts at zero, D
    is the labels (up to sign) and `.correlation` is Eq. 4. Rows of several outputs or positions: one each, their inputs
    repeated.

    >>> derivatives_from_kernel([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]], [1.0, 1.0]).agop
    tensor([[4., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    inputs, numbers = _inputs_and_weights(X, loss_derivatives)
    gram = tensor_of(kernel, "the kernel", 2).to(inputs.device)
    weighted = numbers[:, None] * inputs
    moved = gram @ weighted
    return EarlyTime(weighted.T @ moved, moved.T @ moved)


def _layer(inputs: Any, tangents: Any, loss_derivatives: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (n, s, in), tangents (n, c, s, out), loss derivatives (n, c)."""
    a = tensor_of(inputs, "the inputs", 2, 3)
    d = tensor_of(loss_derivatives, "the loss derivatives", 1, 2)
    axes = 2 + (a.ndim == 3) + (d.ndim == 2)
    b = tensor_of(tangents, "the tangents", axes).to(a.device)
    d = d.to(a.device)
    a = a if a.ndim == 3 else a[:, None]
    d = d if d.ndim == 2 else d[:, None]
    return a, b.reshape(*d.shape, a.shape[1], b.shape[-1]), d


def quadratic_kernel(X: Any, W: Any, a: Any) -> Float64[Tensor, "n n"]:
    """𝒦 = 4 X Wᵀ diag(a²) W Xᵀ of f = a·(Wx)²; O(nk(n + d)). Appendix E prints it without the 4, which is f = a·(Wx)²/2.

    >>> quadratic_kernel([[1.0]], [[3.0]], [2.0])
    tensor([[144.]], dtype=torch.float64)
    """
    inputs, weights, readout = tensor_of(X, "X", 2), tensor_of(W, "W", 2), tensor_of(a, "a", 1)
    tangents = 2 * (inputs @ weights.T) * readout
    return tangents @ tangents.T


def _data_matrices(X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """S = XᵀYX and B = XᵀX."""
    inputs, labels = _inputs_and_weights(X, y)
    return inputs.T @ (labels[:, None] * inputs), inputs.T @ inputs


def _positive(traces: Traces) -> Traces:
    if not (traces.first > 0 and traces.second > 0 and traces.first < float("inf") > traces.second):
        raise NumericalError(
            f"the norms of the two matrices are {traces.first:.3g} and {traces.second:.3g}, squared: no correlation is defined;"
            " rescale X and y, or drop labels that cancel"
        )
    return traces


def quadratic_traces(X: Any, y: Any, W: Any, a: Any) -> Traces:
    """The three traces of Eq. 4 for one network f = a·(Wx)²: tr(ARARBR), tr(ARAR), tr(ARBRARBR) (Eqs. 16, 17, 21, 23).

    A = (XᵀYX)², B = XᵀX, R = Wᵀ diag(a²) W; exact for any sizes, in O(d²(n + k + d)). The kernel's factor 4 is left out.

    >>> round(quadratic_traces([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [[1.0, 0.0]], [1.0]).correlation, 12)
    1.0
    """
    S, B = _data_matrices(X, y)
    readout, weights = tensor_of(a, "a", 1).to(S.device), tensor_of(W, "W", 2).to(S.device)
    scaled = readout[:, None] * weights
    return _positive(free.word_traces(S @ S, B, scaled.T @ scaled))


@dataclass(frozen=True)
class QuadraticPrediction:
    """What free probability predicts for f = a·(Wx)²: the traces, and those with Eq. 28 as it was printed."""

    traces: Traces
    printed: Traces
    moments: tuple[float, ...]

    @property
    def correlation(self) -> float:
        """ρ(ẆᵀẆ, ẆᵀKẆ), in [0, 1]."""
        return self.traces.correlation

    @property
    def printed_correlation(self) -> float:
        """With Eq. 28 as printed: it may exceed 1, and is NaN where the printed denominator is negative."""
        return self.printed.correlation


def quadratic_prediction(
    X: Any,
    y: Any,
    *,
    moments: Sequence[float] | DrawnMoments | None = None,
    width: int | None = None,
) -> QuadraticPrediction:
    """ρ(ẆᵀẆ, ẆᵀKẆ) of f = a·(Wx)² at the start, from the data and four moments of R alone; O(d²(n + d)).

    `moments`: tr[R] … tr[R⁴], such as those of `drawn_moments`; or the `width`, for their limits by free cumulants
    (d/k)^(p-1) (2p-1)!!. Assumes that R is free of the data, that one network is like the average one, and that means may be
    taken inside the ratio (Assumptions 7 to 9): exact as n, d and k grow together. Eqs. 20, 22 and 28.

    >>> X, y = torch.eye(4), torch.tensor([1.0, -1.0, 2.0, 1.0])
    >>> round(quadratic_prediction(X, y, width=10**9).correlation, 6)  # 𝒦 ∝ XXᵀ, here a projector
    1.0
    """
    S, B = _data_matrices(X, y)
    if (moments is None) == (width is None):
        raise UsageError(
            f"got moments={moments!r} and width={width!r}; expected one of them: the hidden width, or tr[R] … tr[R⁴]"
        )
    r = free.free_moments(len(S), width) if width is not None else free.checked_moments(moments)
    data = free.DataTraces.of(S @ S, B)
    return QuadraticPrediction(
        _positive(free.predicted_traces(data, r)), free.predicted_traces(data, r, printed=True), tuple(r)
    )


def isotropic_numerator(X: Any, y: Any, moments: Sequence[float]) -> float:
    """Eq. 6, the shortcut for XᵀX = I: `tr[A]² tr[R³] + tr[R] tr[R²] tr[Ā²]`, traces normalised.

    >>> isotropic_numerator(torch.eye(2), [1.0, 1.0], (1.0, 4.0, 25.0, 202.0))
    25.0
    """
    S, B = _data_matrices(X, y)
    eye = torch.eye(len(B), dtype=B.dtype, device=B.device)
    if not torch.allclose(B, eye, rtol=0, atol=1e-8):
        raise UsageError(
            f"got inputs with |XᵀX - I| up to {float((B - eye).abs().max()):.3g}; expected XᵀX = I: use quadratic_prediction"
        )
    data = free.DataTraces.of(S @ S, B)
    return free.isotropic_numerator(data.a, data.aa, free.checked_moments(moments))


def expected_derivatives(X: Any, y: Any, width: int) -> EarlyTime:
    """E[ẆᵀẆ] = 4 S² and E[ẆᵀKẆ] = 16 ((3/k) Tr(B) S² + (1 + 5/k) SBS), S = XᵀYX and B = XᵀX; O(d²(n + d)).

    Of f = a·(Wx)², a ~ N(0, 1), W ~ N(0, 1/k), for any width k: Prop. 10 corrected, and the mean term of Eq. 5.

    >>> expected_derivatives([[1.0], [1.0]], [1.0, 1.0], width=2)
    EarlyTime(nfm=tensor([[16.]], dtype=torch.float64), agop=tensor([[640.]], dtype=torch.float64))
    """
    S, B = _data_matrices(X, y)
    square = S @ S
    return EarlyTime(4 * square, 16 * (3 / width * B.trace() * square + (1 + 5 / width) * (S @ B @ S)))


def expected_traces(X: Any, y: Any, width: int) -> Traces:
    """E of the three traces of `quadratic_traces` over a ~ N(0, 1) and W ~ N(0, 1/k), exact for any n, d and k; O(d²(n + d)).

    Both terms of Eq. 5: the trace of the product of means (`expected_derivatives`) and the covariance. `.correlation` predicts
    as `quadratic_prediction` does, without its assumption that R is free of the data (Assumption 8), but still takes means
    inside the ratio (Assumption 9): single networks may correlate more where one direction of X dominates.

    >>> found = expected_traces([[1.0], [1.0]], [1.0, 0.0], width=1)
    >>> found.first  # E[r²], r = a²w²: 3 · 3
    9.0
    """
    S, B = _data_matrices(X, y)
    words = gaussian.words_of(S @ S, B)
    return _positive(Traces(*(gaussian.mean_word(word, words, width) / len(S) for word in ("AAB", "AA", "ABAB"))))


def first_order_prediction(X: Any, y: Any, **network: Any) -> EarlyTime:
    """The two matrices with 𝒦 replaced by its mean: XᵀY E[𝒦] YX and XᵀY E[𝒦]² YX; O(n²(n + d)). Appendix C.

    `network` says which one, as for `expected_kernel`. What it leaves out is how 𝒦 varies from network to network, which
    vanishes as the width grows.

    >>> X = torch.eye(3)
    >>> round(first_order_prediction(X, [1.0, 2.0, 3.0], activation="quadratic", depth=2).correlation, 6)
    1.0
    """
    inputs, labels = _inputs_and_weights(X, y)
    return derivatives_from_kernel(inputs, expected_kernel(inputs, **network), labels)


def _inputs_and_weights(X: Any, y: Any) -> tuple[Float64[Tensor, "n d"], Float64[Tensor, " n"]]:
    """Inputs (n, d) and one number per input (labels, or derivatives of the loss)."""
    inputs, numbers = tensor_of(X, "X", 2), tensor_of(y, "y", 1)
    return inputs, numbers.to(inputs.device)

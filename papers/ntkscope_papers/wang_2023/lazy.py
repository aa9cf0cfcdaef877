"""Lazy training of a two-layer network: the kernel machine it stays close to, and the published bounds on how close.

`f(x) = h^(-1/2) Σ vᵢ σ(wᵢ·x/√d)` with n items, W trained by gradient descent on `1/(2n) ‖y - f(X)‖²`, v fixed. Wang et al.,
in the PNNL report (2023), equations 78 to 86. Where the report errs, the corrected form is here and the printed one beside it:

- Section 4.1 restates the CK as `σ(WX)ᵀσ(WX)/h`. The `1/√d` of Eq. 76 belongs inside σ, which saturates without it.
- Eq. 83 subtracts three squared Hermite coefficients of σ'. It is a lower bound, and loose: with n and d growing alike the
  terms from η₁ on are multiples of the identity up to outliers, only η₀² is lost, and λ_min tends to
  `least_eigenvalue_limit` (tanh: 0.247 where Eq. 83 says 0.080). Both are for E[v²] = 1 and scale with it.
- Theorem 4.2 bounds the step with a constant `λ_α` that is defined nowhere; the Lipschitz constant `λ_σ` of assumption 3.2 is
  meant.
- Theorem 4.2 calls ℓ the training loss; it is the norm of the residual; with the loss of Eq. 74 in its place Eq. 85, 86 fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkscope.infinite.rules.hermite import Activation, Scheme
from ntkscope.surrogates import KernelRidge

Function = Callable[[Tensor], Tensor]
PRINTED = 3  # Hermite coefficients that Eq. 83 subtracts


def lazy_prediction(K: Any, K_test: Any, y: Any, start: Any, start_test: Any) -> np.ndarray:
    """`f̂(x) = f₀(x) + K(x, X) K(X, X)⁻¹ (y - f₀(X))`: the linearised network, interpolating at least distance; O(n³). Eq. 78.

    `K` (n, n) and `K_test` (m, n) are the tangent kernel at the start; `start`, `start_test` the network's outputs there, (n,)
    and (m,), or with one column per output like y. Solved by `KernelRidge` without a ridge; a singular kernel gets the
    jitter it needs, with a warning.

    >>> lazy_prediction(np.array([[2.0]]), np.array([[1.0], [2.0]]), [5.0], [1.0], [0.0, 1.0]).round(9).tolist()
    [2.0, 5.0]
    """
    targets, before, after = (np.asarray(each, dtype=np.float64) for each in (y, start, start_test))
    return np.asarray(after + KernelRidge(alpha=0.0).fit(K, targets - before).predict(K_test))


@dataclass(frozen=True)
class SlopeMoments:
    """Of σ' under ξ ~ N(0, 1): `second` is a_σ = E[σ'(ξ)²], `coefficients` are η_k = E[σ'(ξ) He_k(ξ)]/√k!, k = 0, 1, 2."""

    second: float
    coefficients: tuple[float, float, float]


def slope_moments(activation: Function) -> SlopeMoments:
    """a_σ and the first Hermite coefficients of σ', by quadrature with nodes that crowd where σ or σ' changes quickly.

    >>> found = slope_moments(torch.sin)  # E cos² = (1 + e⁻²)/2, E cos = e^(-1/2)
    >>> round(found.second, 9) == round((1 + math.exp(-2)) / 2, 9), round(found.coefficients[0] ** 2 * math.e, 9)
    (True, 1.0)
    """
    scheme = Scheme.of(Activation(activation), 1.0, True)
    one = torch.ones(1, dtype=torch.float64)
    with torch.no_grad():
        zeroth, first, second = scheme.series(one, PRINTED, True)[0].tolist()
        return SlopeMoments(float(scheme.moment(one, True)), (zeroth, first, second))


def least_eigenvalue_bound(activation: Function, *, variance: float = 1.0) -> float:
    """`E[v²] (a_σ - η₀² - η₁² - η₂²)`, below λ_min of the initial first-layer NTK in the limit. Eq. 83.

    `variance` is E[v²] of the second layer; Eq. 83 is printed for 1.

    >>> round(least_eigenvalue_bound(lambda z: torch.tanh(z) / 0.394294**0.5), 4)
    0.0797
    """
    found = slope_moments(activation)
    return variance * (found.second - sum(eta**2 for eta in found.coefficients))


def least_eigenvalue_limit(activation: Function, ratio: float, *, variance: float = 1.0) -> float:
    """What λ_min of the initial first-layer NTK tends to when n, d and h grow alike, with n/d = `ratio`.

    `K = XᵀX/d ⊙ E[σ'σ'](XᵀX/d) = Σ_k η_k² (XᵀX/d)^{⊙(k+1)}`: off the diagonal the terms from k = 1 on have entries of order
    1/d, so up to a few outliers they leave `η_k² I`, and K is `η₀² XᵀX/d + (a_σ - η₀²) I`. The least eigenvalue of XᵀX/d is
    that of Marchenko and Pastur's law, `(1 - √ratio)²`, or 0 where n > d. Asymptotic: at d = 1000 some 0.04 are missing for
    tanh.

    >>> round(least_eigenvalue_limit(lambda z: torch.tanh(z) / 0.394294**0.5, 2.0), 4)
    0.2473
    """
    found = slope_moments(activation)
    linear = found.coefficients[0] ** 2
    edge = max(0.0, 1 - math.sqrt(ratio)) ** 2
    return variance * (found.second - linear * (1 - edge))


def lipschitz_constant(activation: Function) -> float:
    """`λ_σ = max(sup|σ'|, sup|σ''|)` of a smooth activation, of assumption 3.2: the largest on [-20, 20].

    >>> round(lipschitz_constant(torch.tanh), 6), round(lipschitz_constant(lambda z: torch.sin(2 * z)), 6)
    (1.0, 4.0)
    """
    return max(
        float(slope.abs().max()) for slope in _slopes(activation, torch.linspace(-20, 20, 40_001, dtype=torch.float64))
    )


def _slopes(activation: Function, z: Tensor) -> tuple[Tensor, Tensor]:
    """σ' and σ'' at `z`, by autograd."""
    with torch.enable_grad():
        point = z.requires_grad_(True)
        values = activation(point)
        (first,) = torch.autograd.grad(values.sum(), point, create_graph=True)
        second = torch.zeros_like(z)
        if first.requires_grad:
            found = torch.autograd.grad(first.sum(), point, allow_unused=True)[0]
            second = second if found is None else found
    return first.detach(), second.detach()


def alpha_of(least: float) -> float:
    """`α = √λ_min / 2`, the largest with `λ_min(K₀) ≥ 4α²`. Section 4.1.

    >>> alpha_of(0.16)
    0.2
    """
    return math.sqrt(least) / 2


def largest_rate(alpha: float, items: int, ratio: float, lipschitz: float) -> float:
    """`η < min(α² n / 2, n / (4 λ_σ² (1 + √γ₁)²))`, γ₁ = n/d: the steps for which Theorem 4.2 holds. Printed with `λ_α`.

    >>> largest_rate(1.0, 8, 1.0, 1.0)
    0.5
    """
    return min(alpha**2 * items / 2, items / (4 * lipschitz**2 * (1 + math.sqrt(ratio)) ** 2))


@dataclass(frozen=True)
class GlobalConvergence:
    """The three inequalities of Theorem 4.2 on one run: each the largest left side over its right side, at most 1 if it holds.

    `rate`: of Eq. 84, over all steps. `distance`: of Eq. 85. `path`: of Eq. 86, for the steps made.
    """

    rate: float
    distance: float
    path: float

    @property
    def holds(self) -> bool:
        return max(self.rate, self.distance, self.path) <= 1 + 1e-12  # rounding


def global_convergence(
    residuals: Any, distances: Any, moves: Any, *, alpha: float, lr: float, items: int
) -> GlobalConvergence:
    """Theorem 4.2 on T steps: `ℓ_t ≤ (1 - ηα²/2n)^t ℓ₀`, `α/4 ‖W_t - W₀‖ + ℓ_t ≤ ℓ₀`, `Σ‖W_{t+1} - W_t‖ ≤ 4ℓ₀/α`; O(T).

    `residuals`: ℓ_t = ‖y - f_t(X)‖ of steps 0 … T (the norm, not the loss of Eq. 74). `distances`: ‖W_t - W₀‖_F of the same
    steps. `moves`: ‖W_{t+1} - W_t‖_F of the T updates. Eq. 84 to 86.

    >>> found = global_convergence([2.0, 1.0], [0.0, 1.0], [1.0], alpha=1.0, lr=1.0, items=2)
    >>> round(found.rate, 6), found.distance, found.path, found.holds  # 1 / (2 · 3/4), (1/4 + 1)/2, 1 / 8
    (0.666667, 0.625, 0.125, True)
    """
    loss, away, steps = (np.asarray(each, dtype=np.float64) for each in (residuals, distances, moves))
    shrinks = 1 - lr * alpha**2 / (2 * items)
    with np.errstate(divide="ignore"):  # a residual of 0 is below every bound
        logarithms = np.log(loss[1:] / loss[0])
    return GlobalConvergence(
        float(np.exp(logarithms - np.arange(1, len(loss)) * math.log(shrinks)).max()),
        float((alpha / 4 * away[1:] + loss[1:]).max() / loss[0]),
        float(steps.sum() * alpha / (4 * loss[0])),
    )

"""The Newton system of a logistic loss in function space, solved by Cholesky factors of n × n matrices.

With prior covariance `κ = K/α` and the loss's second derivatives W (n points, c × c each), the quadratic model at f is
minimised by `(I + W κ) γ = W (f - b) - r`, `f = κ γ + b`, γ = α c; r is the loss's gradient. For softmax
`W = D - Π Πᵀ` with D diagonal, and `E_k = (κ + D_k⁻¹)⁻¹` gives, by Woodbury,

    ((I + W κ)⁻¹ ρ)_k = ρ_k - E_k κ ρ_k + E_k (Σ_m E_m)⁻¹ Σ_m E_m κ ρ_m.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ntkscope.linalg import NumericalWarning
from ntkscope.surrogates.solvers.losses import Loss, Softmax
from ntkscope.surrogates.solvers.newton import Apply


class Laplace:
    """Exact Newton steps for `loss(K c + b) + α/2 Σ_k c_kᵀ K c_k`."""

    def __init__(self, kernel: Tensor, loss: Loss, alpha: float, bias: bool) -> None:
        self.jitter = 0.0
        self.kernel, self.loss, self.alpha, self.bias = kernel, loss, alpha, bias
        self.kappa = kernel / alpha
        self.rounding = len(kernel) * torch.finfo(kernel.dtype).eps * float(kernel.diagonal().abs().sum())
        """How far below zero an eigenvalue may lie and still count as zero."""
        self.softmax = isinstance(loss, Softmax)
        self.weights = loss.weights

    def value(self, c: Tensor, fitted: Tensor) -> float:
        return float(self.loss.value(fitted) + self.alpha / 2 * (c * (self.kernel @ c)).sum())

    def gap(self, c: Tensor, fitted: Tensor) -> float:
        """An upper bound of the objective's distance from its minimum: the duality gap at a point u of the dual problem.

        `gap(u) = FY(f, u) + hᵀKh / 2α`, `h = α c + u`, FY the Fenchel-Young gap between logits and u, zero at `u = ∇loss`.
        Takes the smaller of two gaps: at `u = ∇loss`, and at `u ≈ -α c`, which K and its rounding hardly affect.
        The bias is at its optimum; both gaps include what it could still gain and what spurious eigenvalues could hide.
        """
        r, blocks = self.loss.residual(fitted), self.loss.blocks(fitted)
        slope, curvature = (r.sum(0), blocks.sum(0)) if self.bias else (r[0] * 0, blocks[0])
        inverse = torch.linalg.pinv(curvature, hermitian=True)
        still = float((slope * (inverse @ slope)).sum()) if self.bias else 0.0
        still += (
            self.alpha / 2 * self.rounding * float(c.square().sum())
        )  # the part of c in directions where K is only rounding
        plain = self._distance(self.alpha * c + r)
        if self.bias:  # dual points are feasible only if they sum to zero: moved there along the curvature
            shift = -(blocks @ (inverse @ (self.alpha * c).sum(0)))
        else:
            shift = torch.zeros_like(r)
        dual = -(self.alpha * c + shift)
        return still + min(plain, float(self.loss.fenchel_young(fitted, dual)) + self._distance(-shift))

    def _distance(self, h: Tensor) -> float:
        """`hᵀKh / 2α`."""
        own = float((h * (self.kernel @ h)).sum().abs() + self.rounding * h.square().sum())
        return own / (2 * self.alpha)

    def stationarity(self, c: Tensor, fitted: Tensor) -> float:
        """The largest entry of `n (α c + r)`, and of the bias's gradient."""
        r = self.loss.residual(fitted)
        gap = float((self.alpha * c + r).abs().max()) * len(r)
        return max(gap, float(r.sum(0).abs().max())) if self.bias else gap

    def step(self, c: Tensor, fitted: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients and bias after a full Newton step."""
        apply, solve = self._system(fitted)
        rho = apply(fitted) - self.loss.residual(fitted)
        free = solve(rho)  # with b = 0
        classes = rho.shape[1]
        if not self.bias:
            return free / self.alpha, rho.new_zeros(classes)
        units = torch.eye(classes, dtype=rho.dtype, device=rho.device).expand(len(rho), classes, classes)
        shifts = torch.stack([solve(apply(units[:, :, k].contiguous())) for k in range(classes)], dim=2)
        # the bias's equation: Σ_i γ_i = 0; softmax leaves a common shift free, and the pseudo-inverse takes it as 0
        b = torch.linalg.pinv(shifts.sum(0), rtol=1e-12, hermitian=False) @ free.sum(0)
        return (free - shifts @ b) / self.alpha, b

    # -- pieces -----------------------------------------------------------------------------------------------------

    def _system(self, fitted: Tensor) -> tuple[Apply, Apply]:
        """`R ↦ W R`, and `ρ ↦ (I + W κ)⁻¹ ρ`."""
        _, apply = self.loss.curvature(fitted)
        p = torch.softmax(fitted, 1) if self.softmax else torch.sigmoid(fitted)
        d = self.weights * (p if self.softmax else p * torch.sigmoid(-fitted))
        factors = [self._e(d[:, k]) for k in range(d.shape[1])]
        chol = self._joint(factors) if self.softmax else None

        def solve(rho: Tensor) -> Tensor:
            seen = self.kappa @ rho
            e = torch.stack([factors[k] @ seen[:, k] for k in range(rho.shape[1])], dim=1)
            out = rho - e
            if chol is not None:
                common = torch.cholesky_solve(e.sum(1, keepdim=True), chol)
                out = out + torch.cat([f @ common for f in factors], dim=1)
            return out

        return apply, solve

    def _e(self, d: Tensor) -> Tensor:
        """`(κ + D⁻¹)⁻¹ = S (I + S κ S)⁻¹ S`, S² = D."""
        s = d.sqrt()
        b = s[:, None] * self.kappa * s
        b.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(b)
        if int(failed):
            self._lift()
            return self._e(d)
        half = torch.linalg.solve_triangular(factor, torch.diag(s), upper=False)
        return half.T @ half

    def _joint(self, factors: list[Tensor]) -> Tensor:
        """The Cholesky factor of `Σ_k E_k`, with the weights' zero rows kept apart."""
        total = torch.stack(factors).sum(0)
        empty = self.weights[:, 0] == 0
        total[empty, empty] += 1.0
        factor, failed = torch.linalg.cholesky_ex(total)
        if int(failed):
            total.diagonal().add_(1e-12 * float(total.diagonal().max()))
            factor = torch.linalg.cholesky(total)
        return factor

    def _lift(self) -> None:
        """Jitter that makes a kernel with negative eigenvalues positive semi-definite, with a warning."""
        smallest = float(torch.linalg.eigvalsh(self.kernel)[0])
        jitter = max(-smallest * (1 + 1e-6), 1e-12 * float(self.kernel.diagonal().abs().mean()))
        self.jitter += jitter
        self.kernel = self.kernel + jitter * torch.eye(
            len(self.kernel), dtype=self.kernel.dtype, device=self.kernel.device
        )
        self.kappa = self.kernel / self.alpha
        warnings.warn(
            f"the kernel has negative eigenvalues (smallest {smallest:.3g}): jitter {jitter:.3g} was added to its diagonal",
            NumericalWarning,
            stacklevel=5,
        )

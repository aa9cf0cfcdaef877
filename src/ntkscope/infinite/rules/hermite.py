"""Any function of one number: its Hermite coefficients by quadrature, its covariances by Mehler's series."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import mpmath
import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.infinite.layer import Layer, Nonlinearity
from ntkscope.infinite.registry import Translator, layer, module_rule

REACH = 13.0  # standard deviations; e^{-13²/4} is 4e-19, and Hermite functions carry half of the Gaussian
TERMS, ENOUGH = (32, 64, 128, 256, 512), 1e-13
PANELS, NODES = 52, 20  # panels of half a standard deviation, one edge at zero; Gauss–Legendre nodes in each


@layer
@final
@dataclass(frozen=True)
class Activation(Nonlinearity):
    """σ given as a function of a tensor: E[σσ] = Σ_n aₙ(q₁) aₙ(q₂) ρⁿ with ρ the correlation (Mehler).

    aₙ(q) = E[σ(√q z) Heₙ(z)] / √n! comes from Gauss–Legendre quadrature on half-deviation panels, one edge at zero (where
    the usual kink sits); σ̇ from autograd. The series stops at `terms`; by Cauchy and Schwarz what it leaves out is at most
    √(r(q₁) r(q₂)) |ρ|^{terms}, r(q) = E[σ²] − Σ_{n<terms} aₙ² being known exactly: `error(q)` says it. Left out, `terms` is
    the first power of two from 32 to 512 that leaves 1e-13 of E[σ²] and E[σ̇²] at the largest variance. Analytic functions
    leave e^{−c√terms}; kinks leave terms^{−3/2}, and Relu, LeakyRelu, Abs are exact. O(terms) passes over the pairs.

    >>> tanh = Activation(torch.tanh)
    >>> tanh.error(1.0) < 1e-12
    True
    """

    fn: Callable[[Tensor], Tensor]
    terms: int | None = None
    normalise: bool = False

    def __post_init__(self) -> None:
        if self.terms is not None and self.terms < 2:
            raise UsageError(f"terms={self.terms} came; expected at least 2")

    def __repr__(self) -> str:
        return f"Activation({getattr(self.fn, '__name__', repr(self.fn))})"

    def covariances(self, cov: Tensor, q1: Tensor, q2: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        norm = (q1 * q2).sqrt()
        rho = torch.where(norm > 0, cov / norm, 0).clamp(-1, 1)
        terms = self.chosen(max(float(q1.max()), float(q2.max())), slopes)
        sides = [
            [self.coefficients(q, terms, derivative) for q in (q1, q2)] for derivative in (False, True)[: 1 + slopes]
        ]
        values, *slope = (_series(left, right, rho) for left, right in sides)
        return values, slope[0] if slope else None

    def moments(self, q: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        """By quadrature of the square: nothing is cut off."""
        z, weights, _ = _quadrature(1)
        flat = q.reshape(-1, 1).double().sqrt() * z.to(q.device)
        values = (self.function(flat).square() @ weights.to(q.device)).to(q.dtype).reshape(q.shape)
        if not slopes:
            return values, None
        return values, (self._derivative(flat).square() @ weights.to(q.device)).to(q.dtype).reshape(q.shape)

    def chosen(self, q: float | int, slopes: bool = True) -> int:
        """How many terms variances up to q take."""
        if self.terms is not None:
            return self.terms
        return next(
            (n for n in TERMS if self._left(q, n, False) < ENOUGH and not (slopes and self._left(q, n, True) > ENOUGH)),
            TERMS[-1],
        )

    def coefficients(self, q: Tensor, terms: int, derivative: bool) -> list[Tensor]:
        """aₙ(q), or those of σ̇, for n = 0 … terms − 1; each of the shape of `q`."""
        z, _, table = _quadrature(terms)
        flat = q.reshape(-1, 1).double().sqrt() * z.to(q.device)
        values = self._derivative(flat) if derivative else self.function(flat)
        if not bool(torch.isfinite(values).all()):
            raise UsageError(
                f"{self} is not finite on [{float(flat.min()):.3g}, {float(flat.max()):.3g}]; expected a function of all"
                " real numbers that grows more slowly than exp(x²/4)"
            )
        found = (values @ table.to(q.device)).to(q.dtype)  # (samples, terms)
        return [found[:, n].reshape(q.shape) for n in range(terms)]

    def error(self, q: float | int, derivative: bool = False) -> float:
        """A bound of the relative error of E[σσ] (or E[σ̇σ̇]) at variance q, reached at equal inputs; 1e-15 is rounding."""
        return max(self._left(q, self.chosen(q), derivative), 1e-15)

    def _left(self, q: float | int, terms: int, derivative: bool) -> float:
        """The share of E[σ²] (or E[σ̇²]) the first `terms` do not have."""
        with torch.no_grad():
            point = torch.tensor([float(q)], dtype=torch.float64)
            second = self.moments(point, True)[1 if derivative else 0]
            assert second is not None
            if float(second) == 0:
                return 0.0
            kept = sum(float(a) ** 2 for a in self.coefficients(point, terms, derivative))
            return abs(1 - kept / float(second))

    def exact(self, cov: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
        """The series in more digits, from coefficients in double precision: good for the degrees that carry something."""
        if np.size(q1) != 1 or np.size(q2) != 1:
            raise UsageError(f"{self} came with many variances in more digits than double; expected inputs of one norm")
        rho = cov / np.frompyfunc(mpmath.sqrt, 1, 1)(q1 * q2)
        found = []
        for derivative in (False, True):
            sides = []
            for q in (q1, q2):
                point = torch.tensor([float(np.ravel(q)[0])], dtype=torch.float64)
                values = torch.cat(self.coefficients(point, self.terms or TERMS[-1], derivative))
                # What is rounding is zero, so that what vanishes by symmetry does.
                values[values.abs() < 1e-15 * values.abs().max()] = 0
                sides.append([mpmath.mpf(a) for a in values.tolist()])
            total = 0 * rho
            for left, right in zip(sides[0][::-1], sides[1][::-1]):
                total = total * rho + left * right
            found.append(total)
        return found[0], found[1]

    def function(self, z: Tensor) -> Tensor:
        return self.fn(z)

    def _derivative(self, z: Tensor) -> Tensor:
        graph = z.requires_grad
        with torch.enable_grad():
            point = z if graph else z.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(self.fn(point).sum(), point, create_graph=graph)
        return slope


def _series(a1: list[Tensor], a2: list[Tensor], rho: Tensor) -> Tensor:
    """Horner's rule for Σ aₙ(q₁) aₙ(q₂) ρⁿ."""
    total = (a1[-1] * a2[-1]).expand(rho.shape).clone()
    in_place = not (total.requires_grad or rho.requires_grad)
    for left, right in zip(a1[-2::-1], a2[-2::-1]):
        total = total.mul_(rho).addcmul_(left, right) if in_place else torch.addcmul(total * rho, left, right)
    return total


@lru_cache(maxsize=8)
def _quadrature(terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes z, weights φ(z) dz, and weights times normalised Hermite polynomials, (nodes, terms)."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    edges = np.linspace(-REACH, REACH, PANELS + 1)
    half = (edges[1] - edges[0]) / 2
    z = ((edges[:-1] + edges[1:])[:, None] / 2 + half * x).ravel()
    dz = np.tile(half * w, PANELS)
    # Hermite functions hₙ = Heₙ √φ / √n!, which stay bounded: h_{n+1} = (z hₙ − √n h_{n−1}) / √(n+1).
    functions = [np.exp(-(z**2) / 4) / (2 * math.pi) ** 0.25]
    for n in range(terms - 1):
        before = math.sqrt(n) * functions[n - 1] if n else 0.0
        functions.append((z * functions[n] - before) / math.sqrt(n + 1))
    table = np.stack(functions, axis=1) * (functions[0] * dz)[:, None]
    return torch.from_numpy(z), torch.from_numpy(functions[0] ** 2 * dz), torch.from_numpy(table)


@module_rule(
    nn.Tanh, nn.Sigmoid, nn.Softplus, nn.SiLU, nn.ELU, nn.SELU, nn.Mish, nn.Softsign, nn.Hardtanh, nn.LogSigmoid
)
def smooth(module: nn.Module, translate: Translator, path: str) -> Layer:
    """Activations of PyTorch without a closed form."""
    return Activation(module)

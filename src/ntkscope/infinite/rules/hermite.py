"""Any function of one number: its Hermite coefficients by quadrature, its covariances by Mehler's series or pair by pair."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import mpmath
import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.checked import Several
from ntkscope.infinite.layer import Layer, Nonlinearity, Shape
from ntkscope.infinite.precise import gap
from ntkscope.infinite.quadrature import LARGEST, NODES, Pairs, hermite_coefficients, line, pair_means
from ntkscope.infinite.registry import Translator, layer, module_rule
from ntkscope.infinite.transitions import smooth_beside, transitions

TERMS, ENOUGH = (32, 64, 128, 256, 512, 1024, 2048), 1e-13
FEWER = (32, 64, 128, 256, 512)  # where each variance needs nodes of its own
HIDDEN = 1e-13  # the share of a second moment below which a difference of moments is rounding
BOUND = 1e-9  # of √(E[σ(u)²] E[σ(v)²]): what is not known to this is an error
ROUNDING = 1e-12  # the same, of a series that has converged
EQUAL = {torch.float64: 1e-15, torch.float32: 5e-7}  # 1 − |ρ| of inputs that are the same up to rounding


@layer
@final
@dataclass(frozen=True)
class Activation(Nonlinearity):
    """σ given as a function of a tensor: E[σσ] = Σ_n aₙ(q₁) aₙ(q₂) ρⁿ with ρ the correlation (Mehler).

    aₙ(q) = E[σ(√q z) Heₙ(z)] / √n! comes from quadrature whose panels shrink towards the places where σ or σ̇, which comes
    from autograd, change quickly. By Cauchy and Schwarz what `terms` terms leave out is at most √(r(q₁) r(q₂)) |ρ|^{terms},
    r(q) = E[σ²] − Σ_{n<terms} aₙ²; pairs for which 2,048 terms leave more than 1e-13 of √(E[σ(u)²] E[σ(v)²]) (nearly equal
    inputs of a steep function) are integrated one by one, some 10 ms each. Every covariance is right to `error(q)`, 1e-9 at
    most, or refused with the accuracy that was reached. Steep places narrower than 1/10 of their distance from zero that no
    node meets cannot be seen. With `terms` given it is that series alone, and `error(q)` says what it leaves out.

    O(terms) passes over the pairs. Relu, LeakyRelu, Abs, Erf, Gelu and Sin have closed forms.

    Examples:
        >>> tanh = Activation(torch.tanh)
        >>> tanh.error(1.0) <= 1e-12
        True
    """

    fn: Callable[[Tensor], Tensor]
    terms: Several | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.terms is not None and self.terms < 2:
            raise UsageError(f"got terms={self.terms}; expected at least 2")

    def __repr__(self) -> str:
        """With a digest of its values, since two functions may have one name."""
        shown = getattr(self.fn, "__name__", repr(self.fn))
        points = torch.linspace(-9, 9, 61, dtype=torch.float64)
        with torch.no_grad():
            digest = hashlib.sha256(self.function(points).detach().cpu().numpy().tobytes()).hexdigest()[:8]
        options = "".join(f", {name}={getattr(self, name)}" for name in ("terms", "normalize") if getattr(self, name))
        return f"Activation({shown} #{digest}{options})"

    def shape(self, given: Shape, path: str) -> Shape:
        after = super().shape(given, path)
        points = torch.linspace(-2, 3, 7, dtype=torch.float64)
        with torch.no_grad():
            whole = self.function(points)
            parts = (
                torch.cat([self.function(part) for part in points.split(2)]) if whole.shape == points.shape else None
            )
        if parts is None or not torch.allclose(whole, parts, rtol=1e-12, atol=0, equal_nan=True):
            raise UsageError(
                f"{self.fn!r} (at {path!r}) is not a function of each number alone; expected one, such as torch.tanh"
            )
        return after

    def covariances(self, cov: Tensor, q1: Tensor, q2: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        norm = (q1 * q2).sqrt()
        rho = torch.where(norm > 0, cov / norm, 0).clamp(-1, 1)
        largest = max((float(q.detach().max()) for q in (q1, q2) if q.numel()), default=0.0)
        scheme = Scheme.of(self, largest, slopes)
        sides = [[scheme.moment(q, d) for q in (q1, q2)] for d in scheme.derivatives]
        terms, rest, coefficients = self._enough(scheme, rho, q1, q2, sides)
        results = [_series(left, right, rho) for left, right in coefficients]
        if rest is not None:
            if any(t.requires_grad for t in (cov, q1, q2)):
                raise UsageError(
                    f"got gradients of {self} at variances up to {largest:.3g}, where a series of {terms} terms is not enough;"
                    " expected a layer with a closed form, or smaller weights or inputs"
                )
            sizes = [(a * b).sqrt().expand(rho.shape)[rest] for a, b in sides]
            three = [t[rest].double() for t in torch.broadcast_tensors(cov, q1, q2)]
            singles = self._one_by_one(scheme, three, sizes, EQUAL[rho.dtype])
            for result, exact in zip(results, singles):
                result[rest] = exact.to(result.dtype)
        return results[0], results[1] if slopes else None

    def _enough(
        self, scheme: Scheme, rho: Tensor, q1: Tensor, q2: Tensor, sides: Any
    ) -> tuple[int, Tensor | None, Any]:
        """How many terms, the pairs they are not enough for (None: enough for all), and the coefficients of both sides."""
        logs = rho.detach().abs().clamp(min=1e-300).log()
        if self.terms is not None:
            return self.terms, None, scheme.coefficients(q1, q2, self.terms)[0]
        graph = any(t.requires_grad for t in (rho, q1, q2))
        for terms in scheme.terms:
            found, left = scheme.coefficients(q1, q2, terms, sides)
            bounds = [logs * terms + (one + two) / 2 for one, two in left]
            missing = torch.stack(torch.broadcast_tensors(*bounds)).amax(0) > math.log(ENOUGH)
            number = int(missing.sum())
            if number == 0:
                return terms, None, found
            # Where all that is left are inputs equal up to rounding, an integral on a line is cheaper than more terms.
            if not graph and number == int((missing & (logs > -4 * EQUAL[rho.dtype])).sum()):
                break
        return terms, missing.expand(rho.shape), found

    def _one_by_one(
        self, scheme: Scheme, covariance: list[Tensor], sizes: list[Tensor], rounding: float
    ) -> list[Tensor]:
        """Both covariances of single pairs, each to `BOUND`."""
        cov, q1, q2 = covariance
        product = q1 * q2
        square = (gap(cov, q1, q2) / product).clamp(max=1)  # 1 − ρ²
        apart = square / (1 + (1 - square).sqrt())
        pairs = Pairs(q1.sqrt(), q2.sqrt(), apart, torch.where(cov < 0, -1.0, 1.0).double())
        results = torch.empty(len(sizes), len(pairs), dtype=torch.float64, device=cov.device)
        equal = apart <= rounding
        if bool(equal.any()):
            results[:, equal] = scheme.on_a_line(pairs[equal])
        if not bool(equal.all()):
            apart_ones = pairs[~equal]
            allowed = torch.stack([size[~equal].double() for size in sizes]) * BOUND
            values, errors = pair_means(scheme.functions, apart_ones, scheme.places, allowed)
            missed = errors > allowed
            if bool(missed.any()):
                at = int(missed.any(0).nonzero()[0])
                reached = float((errors / allowed * BOUND).amax(0)[at])
                raise NumericalError(
                    f"{self} at variances {float(q1[~equal][at]):.6g} and {float(q2[~equal][at]):.6g}, correlation"
                    f" {float(apart_ones.sign[at]):g} · (1 − {float(apart_ones.apart[at]):.3g}), is known to {reached:.1e} of"
                    f" the second moment only; expected {BOUND:g}: use a layer with a closed form, or smaller weights or inputs"
                )
            results[:, ~equal] = values
        return list(results)

    def moments(self, q: Tensor, slopes: bool) -> tuple[Tensor, Tensor | None]:
        """By quadrature of the square: nothing is cut off."""
        scheme = Scheme.of(self, float(q.detach().max()) if q.numel() else 0.0, slopes)
        found = [scheme.moment(q, derivative).to(q.dtype) for derivative in scheme.derivatives]
        return found[0], found[1] if slopes else None

    def error(self, q: float | int, derivative: bool = False) -> float:
        """A bound of the error of E[σσ] (or E[σ̇σ̇]) at variances q, relative to E[σ²] (E[σ̇²]); at any correlation."""
        point = torch.tensor([float(q)], dtype=torch.float64)
        with torch.no_grad():
            scheme = Scheme.of(self, float(q), derivative)
            left = scheme.left(point, self.terms or scheme.terms[-1], derivative)
            rounding = max(ROUNDING, 10 * scheme.reached(float(q)))
        if self.terms is not None:
            return max(left, rounding)
        return rounding if left <= ENOUGH else BOUND

    def exact(self, cov: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
        """The series in more digits, from coefficients in double precision: good for the degrees that carry something."""
        if np.size(q1) != 1 or np.size(q2) != 1:
            raise UsageError(f"got {self} with many variances in more digits than double; expected inputs of one norm")
        rho = cov / np.frompyfunc(mpmath.sqrt, 1, 1)(q1 * q2)
        farthest = float(max(abs(value) for value in np.ravel(rho)))
        points = [torch.tensor([float(np.ravel(q)[0])], dtype=torch.float64) for q in (q1, q2)]
        scheme = Scheme.of(self, max(map(float, points)), True)
        found = []
        for derivative in (False, True):
            for terms in scheme.terms[2:] if self.terms is None else (self.terms,):
                left = max(scheme.left(point, terms, derivative) for point in points) * min(1.0, farthest) ** terms
                if left <= 1e-15:
                    break
            if self.terms is None and left > ROUNDING:
                raise NumericalError(
                    f"{self} at variances {float(points[0]):.6g} and {float(points[1]):.6g}, correlation {farthest:.6g}, is"
                    f" known to {left:.1e} of the second moment only by a series of {terms} terms; expected {ROUNDING:g}: use a"
                    " layer with a closed form, or smaller weights"
                )
            sides = []
            for point in points:
                values = scheme.series(point, terms, derivative)[0]
                # What is rounding is zero, so that what vanishes by symmetry does.
                values[values.abs() < 1e-15 * values.abs().max()] = 0
                sides.append([mpmath.mpf(a) for a in values.tolist()])
            total = 0 * rho
            for one, two in zip(sides[0][::-1], sides[1][::-1]):
                total = total * rho + one * two
            found.append(total)
        return found[0], found[1]

    def function(self, z: Tensor) -> Tensor:
        return self.fn(z.clone())  # some functions work in place

    def derivative(self, z: Tensor) -> Tensor:
        """σ̇ by autograd; 0 where σ does not depend on z for it, as a step."""
        graph = z.requires_grad
        with torch.enable_grad():
            point = z if graph else z.detach().requires_grad_(True)
            values = self.fn(point.clone())
            if not values.requires_grad:
                return torch.zeros_like(z)
            (slope,) = torch.autograd.grad(values.sum(), point, create_graph=graph, allow_unused=True)
        return torch.zeros_like(z) if slope is None else slope


@dataclass(frozen=True)
class Scheme:
    """How means of one function are formed at variances up to a largest one."""

    kind: Activation
    slopes: bool
    places: tuple[float, ...]
    smallest: float

    @staticmethod
    def of(kind: Activation, largest: float, slopes: bool) -> Scheme:
        reach = 13 * math.sqrt(max(largest, 1e-300))
        with torch.no_grad():
            functions = [kind.function, kind.derivative]
            places = transitions(functions, reach)
            smallest = min(smooth_beside(functions, place, reach) for place in places)
            made = Scheme(kind, slopes, places, smallest)
            made.reached(largest)
        return made

    def reached(self, largest: float) -> float:
        """How far a second moment at the largest variance is from one with fewer nodes; an error where it is not resolved."""
        point = torch.tensor([largest], dtype=torch.float64)
        worst = 0.0
        for derivative in self.derivatives:
            fine, coarse = (float(self.moment(point, derivative, nodes)) for nodes in (NODES, NODES - 5))
            off = abs(fine - coarse)
            if not off <= BOUND / 10 * abs(fine):
                raise NumericalError(
                    f"{self.kind} at variance {largest:.6g}, correlation 1, is known to {off / abs(fine or off):.1e} only;"
                    f" expected {BOUND / 10:g}: it changes too often there for quadrature. Use a layer with a closed form, or"
                    " smaller weights or inputs"
                )
            worst = max(worst, off / fine if fine else 0.0)
        return worst

    @property
    def derivatives(self) -> tuple[bool, ...]:
        return (False, True)[: 1 + self.slopes]

    @property
    def functions(self) -> list[Callable[[Tensor], Tensor]]:
        return [self._values(derivative) for derivative in self.derivatives]

    @property
    def terms(self) -> tuple[int, ...]:
        return TERMS if self.places == (0.0,) else FEWER

    def _values(self, derivative: bool) -> Callable[[Tensor], Tensor]:
        return self.kind.derivative if derivative else self.kind.function

    def _at(self, scale: Tensor, derivative: bool, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Values at nodes, nodes and weights, for standard deviations `scale`."""
        z, weights = line(scale, self.places, self.smallest, nodes)
        points = scale[:, None] * z
        values = self._values(derivative)(points)
        if not bool(torch.isfinite(values).all()):
            raise UsageError(
                f"{self.kind} is not finite on [{float(points.min()):.3g}, {float(points.max()):.3g}]; expected a function of"
                " all real numbers that grows more slowly than exp(x²/4)"
            )
        return values, z, weights

    def _pieces(self, q: Tensor) -> tuple[Tensor, ...]:
        """Standard deviations in groups whose nodes fit into memory."""
        return q.reshape(-1).double().sqrt().split(max(1, LARGEST // 4096))

    def moment(self, q: Tensor, derivative: bool, nodes: int = NODES) -> Tensor:
        """E[f²] in double precision, of the shape of `q`."""
        found = []
        for scale in self._pieces(q):
            values, _, weights = self._at(scale, derivative, nodes)
            found.append((values.square() * weights).sum(1))
        return torch.cat(found).reshape(q.shape) if found else q.double()

    def series(self, q: Tensor, terms: int, derivative: bool) -> Tensor:
        """aₙ(q), (numbers of q, terms), in double precision."""
        found = [hermite_coefficients(*self._at(scale, derivative, NODES), terms) for scale in self._pieces(q)]
        return torch.cat(found) if found else q.new_empty(0, terms, dtype=torch.float64)

    def coefficients(self, q1: Tensor, q2: Tensor, terms: int, sides: Any = None) -> tuple[list[Any], list[Any]]:
        """Coefficients of both sides for f = σ, σ̇, each (terms, *q.shape), and the logarithms of the share they leave out."""
        found, left = [], []
        for k, derivative in enumerate(self.derivatives):
            both, shares = [], []
            for i, q in enumerate((q1, q2)):
                a = self.series(q, terms, derivative)
                both.append(a.T.reshape(terms, *q.shape).to(q.dtype))
                if sides is not None:
                    shares.append(_left_out(a.detach().square(), sides[k][i].detach()).log().to(q.dtype))
            found.append(both)
            left.append(shares)
        return found, left

    def left(self, q: Tensor, terms: int, derivative: bool) -> float:
        """The share of E[f²] that `terms` terms do not have, at one variance."""
        second = float(self.moment(q, derivative))
        kept = float(self.series(q, terms, derivative).square().sum())
        return max(0.0, 1 - kept / second) if second > 0 else 0.0

    def on_a_line(self, pairs: Pairs) -> Tensor:
        """E[f(s₁z) f(±s₂z)] of each function, (functions, pairs)."""
        found = []
        for chosen in torch.arange(len(pairs), device=pairs.s1.device).split(max(1, LARGEST // 8192)):
            part = pairs[chosen]
            z, weights = line(torch.stack([part.s1, part.sign * part.s2], dim=1), self.places, self.smallest)
            found.append(
                torch.stack(
                    [
                        (f(part.s1[:, None] * z) * f((part.sign * part.s2)[:, None] * z) * weights).sum(1)
                        for f in self.functions
                    ]
                )
            )
        return torch.cat(found, dim=1)


def _left_out(squares: Tensor, second: Tensor) -> Tensor:
    """The share of the second moment that the coefficients do not have, of the shape of `second`.

    Down to 1e-13 by Parseval's identity. Below that rounding hides it, and it is read off the last quarter of the terms:
    coefficients that fall at least as n^{−3/4}, as those of a step do, leave less than four times as much as that many would.
    """
    terms = squares.shape[1]
    safe = torch.where(second > 0, second, 1).reshape(-1)
    share = 1 - squares.sum(1) / safe
    falling = 4 * terms * squares[:, 3 * terms // 4 :].amax(1) / safe
    small = torch.minimum(falling + 1e-30, torch.full_like(share, HIDDEN))
    return torch.where(second.reshape(-1) > 0, torch.where(share > HIDDEN, share, small), 1e-30).reshape(second.shape)


def _series(a1: Tensor, a2: Tensor, rho: Tensor) -> Tensor:
    """Horner's rule for Σ aₙ(q₁) aₙ(q₂) ρⁿ."""
    total = (a1[-1] * a2[-1]).expand(rho.shape).clone()
    in_place = not (total.requires_grad or rho.requires_grad)
    for left, right in zip(a1[:-1].flip(0), a2[:-1].flip(0)):
        total = total.mul_(rho).addcmul_(left, right) if in_place else torch.addcmul(total * rho, left, right)
    return total


@module_rule(
    nn.Tanh, nn.Sigmoid, nn.Softplus, nn.SiLU, nn.ELU, nn.SELU, nn.Mish, nn.Softsign, nn.Hardtanh, nn.LogSigmoid
)
def smooth(module: nn.Module, translate: Translator, path: str) -> Layer:
    """Activations of PyTorch without a closed form."""
    return Activation(module)

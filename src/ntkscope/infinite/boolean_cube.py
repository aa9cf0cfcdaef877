"""Eigenvalues of CK and NTK over the Boolean cube {−1, 1}^d, degree by degree.

There the kernel is a function Φ of t = x·x′/d alone, parities are its eigenfunctions, and the eigenvalue of a parity of k
coordinates is μ_k = E[Φ(Σᵢ xᵢ / d) x₁ ⋯ x_k]. The sum alternates: μ_k may be 10⁻¹⁰⁰ of its terms. So Φ and the sum are
computed in as many digits as that takes, and the digits are doubled until doubling changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count
from ntkscope.infinite.field import Field
from ntkscope.infinite.layer import Context, Layer, Need, Shape
from ntkscope.infinite.limit import Kind, from_module
from ntkscope.infinite.registry import Init
from ntkscope.infinite.rules.hermite import Activation
from ntkscope.infinite.rules.serial import Serial

AGREED = 1e-13  # relative: when two precisions agree
DOUBLINGS = 4
UNKNOWN = 1e-12  # the share of a degree below which coefficients in double precision are meaningless


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues by degree, with the share of the variance that each degree's eigenspace carries."""

    domain: str
    dimension: int
    kind: str
    eigenvalues: Float[Tensor, " k"]
    """μ_k; 0 below what a double can hold (5e-324), see `log10`; NaN where it is not known."""
    log10: Float[Tensor, " k"]
    """log₁₀ μ_k; −∞ where it is zero."""
    variance: Float[Tensor, " k"]
    """dim_k μ_k: what degree k adds to K(x, x)."""
    fractional_variance: Float[Tensor, " k"]
    """The share of degree k in K(x, x)."""
    total: float
    """K(x, x), from the kernel itself: the variances of all degrees add up to it."""
    digits: int
    """Decimal digits the computation took."""


def radial(
    net: nn.Module | Layer, kind: Kind = "ntk", *, init: Init = "checked", d: Count | None = None
) -> Callable[[Any], Any]:
    """Φ with K(x, x′) = Φ(x·x′/d) for inputs of norm √d, to mpmath's working precision; arrays of mpmath numbers.

    Examples:
        >>> from ntkscope.infinite import Dense
        >>> radial(Dense(2.0))(np.array([mpmath.mpf("0.5")], dtype=object))
        array([mpf('2.0')], dtype=object)
    """
    layers = Serial((from_module(net, init=init) if isinstance(net, nn.Module) else net,))
    layers.shape(Shape(d), "")
    tangent = kind == "ntk"

    def phi(t: Any) -> Any:
        one = np.array([mpmath.mpf(1)], dtype=object)
        noted: dict[str, Any] = {}
        layers.propagate(Field(one), Context(noted, None, False), "", Need.SAME)
        ended = layers.propagate(Field(t[None, :]), Context(noted, noted, tangent), "", Need.SAME)
        assert ended is not None
        values = (ended.ntk if ended.ntk is not None else 0 * ended.nngp) if tangent else ended.nngp
        return np.broadcast_to(values, (1, len(t)))[0]

    return phi


def boolean_cube(net: nn.Module | Layer, d: Count, kind: Kind = "ntk", *, init: Init = "checked") -> Spectrum:
    """μ_0 … μ_d of a fully connected network's kernel over {−1, 1}^d; C(d, k) parities share μ_k.

    μ_k = 2^{−d} Σ_r Φ(1 − 2r/d) c_r, with (1 − z)^k (1 + z)^{d−k} = Σ_r c_r z^r. Every degree is right to 13 digits, or
    exactly zero. Functions without a closed form (`Activation`) are known in double precision only: degrees that carry less
    than 1e-12 of the variance are NaN then, the others have an error of about 1e-15 of K(x, x).
    O(d²) operations of a few hundred digits: a second for d = 128. Yang & Salman (2019), section 3.

    Examples:
        >>> from ntkscope.infinite import Dense, Erf, serial
        >>> [round(share, 4) for share in boolean_cube(serial(Dense(), Erf(), Dense()), 3, "nngp").fractional_variance.tolist()]
        [0.0, 0.9803, 0.0, 0.0197]
    """
    phi = radial(net, kind, init=init, d=d)
    digits, before = 40 + d, None
    for _ in range(DOUBLINGS + 1):
        with mpmath.workdps(digits):
            found, total = _degrees(phi, d)
            noise = mpmath.mpf(10) ** (-0.9 * digits) * max(abs(m) for m in found)
            if before is not None and all(_settled(m, b, noise) for m, b in zip(found, before)):
                weights = [mpmath.mpf(math.comb(d, k)) for k in range(d + 1)]
                values = [mpmath.mpf(0) if abs(m) <= noise else m for m in found]
                if in_doubles(net):
                    values = [m if m == 0 or m * w > UNKNOWN * total else mpmath.nan for m, w in zip(values, weights)]
                return spectrum("boolean cube", d, kind, values, weights, total, digits)
        before, digits = found, 2 * digits
    raise UsageError(
        f"eigenvalues over {{−1, 1}}^{d} did not settle at {digits // 2} digits; expected a smaller dimension"
    )


def in_doubles(net: nn.Module | Layer) -> bool:
    """Whether some function of the network has no closed form."""
    layers = from_module(net, init="default") if isinstance(net, nn.Module) else net
    inside = [*getattr(layers, "layers", ()), *getattr(layers, "branches", ())]
    return isinstance(layers, Activation) or any(in_doubles(each) for each in inside)


def _settled(now: Any, before: Any, noise: Any) -> bool:
    """The same at half the digits; or both as small as rounding, which shrank with the digits: then it is zero."""
    if abs(now) > noise:
        return bool(abs(now - before) <= AGREED * abs(now))
    return bool(abs(before) <= mpmath.sqrt(noise))


def _degrees(phi: Callable[[Any], Any], d: int) -> tuple[list[Any], Any]:
    """μ_0 … μ_d and Φ(1) at the working precision."""
    t = np.array([mpmath.mpf(d - 2 * r) / d for r in range(d + 1)], dtype=object)
    values = phi(t)
    even, odd = (
        (values + values[::-1]) / 2,
        (values - values[::-1]) / 2,
    )  # so that what vanishes by symmetry is exactly 0
    found = []
    row = [math.comb(d, r) for r in range(d + 1)]  # (1 + z)^d
    scale = mpmath.mpf(2) ** -d
    for k in range(d + 1):
        part = odd if k % 2 else even
        found.append(mpmath.fdot(zip(part, map(mpmath.mpf, row))) * scale)
        if k < d:  # divide by (1 + z), multiply by (1 − z)
            quotient = [row[0]]
            for r in range(1, d):
                quotient.append(row[r] - quotient[-1])
            row = [a - b for a, b in zip([*quotient, 0], [0, *quotient])]
    return found, values[0]


def spectrum(
    domain: str, d: int, kind: str, values: list[Any], dimensions: list[Any], total: Any, digits: int
) -> Spectrum:
    """A `Spectrum` from eigenvalues and dimensions of eigenspaces in mpmath numbers."""
    variance = [m * n for m, n in zip(values, dimensions)]
    logs = [float(mpmath.log10(m)) if m > 0 else math.nan if mpmath.isnan(m) else -math.inf for m in values]

    def column(numbers: list[Any]) -> Tensor:
        return torch.tensor([float(v) for v in numbers], dtype=torch.float64)

    shares = column([v / total for v in variance])
    return Spectrum(domain, d, kind, column(values), column(logs), column(variance), shares, float(total), digits)

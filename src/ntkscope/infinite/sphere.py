"""The sphere's and the Gaussian's counterparts of the Boolean cube: eigenvalues of CK and NTK by degree."""

from __future__ import annotations

import math
from typing import Annotated, Any

import mpmath
import numpy as np
import torch
from scipy.special import roots_genlaguerre, roots_jacobi
from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, CountOrZero, Several, within
from ntkscope.infinite.boolean_cube import AGREED, Spectrum, radial, spectrum
from ntkscope.infinite.field import Field
from ntkscope.infinite.layer import Context, Layer, Need, Shape
from ntkscope.infinite.limit import Kind, from_module
from ntkscope.infinite.registry import Init
from ntkscope.infinite.rules.serial import Serial

HALVINGS = 5


def harmonics(d: Count, k: CountOrZero) -> int:
    """How many independent spherical harmonics of degree k the sphere of R^d has.

    Examples:
        >>> [harmonics(3, k) for k in range(4)]
        [1, 3, 5, 7]
    """
    if k == 0:
        return 1
    return math.comb(d + k - 1, k) - (math.comb(d + k - 3, k - 2) if k > 1 else 0)


def sphere(
    net: nn.Module | Layer, d: Several, kind: Kind = "ntk", *, degrees: CountOrZero = 10, init: Init = "checked"
) -> Spectrum:
    """Eigenvalues of degree 0 … `degrees` over the sphere of radius √d in R^d (Funk–Hecke).

    λ_k = ∫ Φ(t) P_k(t) (1 − t²)^{(d−3)/2} dt / ∫ (1 − t²)^{(d−3)/2} dt with P_k the Legendre polynomial of dimension d, by
    tanh–sinh quadrature (Φ is not smooth at ±1) in enough digits for the cancellation, halved until nothing changes.

    Examples:
        >>> from ntkscope.infinite import Dense
        >>> sphere(Dense(), 5, "nngp", degrees=2).variance
        tensor([0., 1., 0.], dtype=torch.float64)
    """
    phi = radial(net, kind, init=init, d=d)
    digits = 40 + math.ceil(2 * degrees * math.log10(d + degrees + 1))
    with mpmath.workdps(digits):
        before: list[Any] | None = None
        total = phi(np.array([mpmath.mpf(1)], dtype=object))[0]
        noise = mpmath.mpf(10) ** (15 - digits) * abs(total)
        for halving in range(3, 3 + HALVINGS):
            found = _projections(phi, d, degrees, mpmath.mpf(2) ** -halving, digits)
            if before is not None and all(abs(m - b) <= max(AGREED * abs(m), noise) for m, b in zip(found, before)):
                settled = [mpmath.mpf(0) if abs(m) <= noise else m for m in found]
                sizes = [mpmath.mpf(harmonics(d, k)) for k in range(degrees + 1)]
                return spectrum("sphere", d, kind, settled, sizes, total, digits)
            before = found
    raise UsageError(f"eigenvalues over the sphere of R^{d} did not settle; expected fewer degrees than {degrees}")


def _projections(phi: Any, d: int, degrees: int, step: Any, digits: int) -> list[Any]:
    """λ_0 … λ_degrees with nodes tanh(π/2 sinh(j·step))."""
    nodes, weights = [], []
    j = 0
    while True:
        u = mpmath.pi / 2 * mpmath.sinh(j * step)
        weight = mpmath.sech(u) ** (d - 1) * mpmath.cosh(j * step)
        if weight < mpmath.mpf(10) ** (-digits - 5):
            break
        for sign in (1, -1) if j else (1,):
            nodes.append(sign * mpmath.tanh(u))
            weights.append(weight)
        j += 1
    t = np.array(nodes, dtype=object)
    w = np.array(weights, dtype=object)
    values = phi(t) * w
    mass = w.sum()
    legendre, found = [0 * t + 1, t], []
    for k in range(degrees + 1):
        if k > 1:
            legendre.append(((2 * k + d - 4) * t * legendre[-1] - (k - 1) * legendre[-2]) / (k + d - 3))
        found.append((values * legendre[k]).sum() / mass)
    return found


def gaussian(
    net: nn.Module | Layer,
    d: Annotated[int, within(low=3)],
    kind: Kind = "ntk",
    *,
    degrees: CountOrZero = 6,
    radii: Count = 24,
    angles: Count = 200,
    init: Init = "checked",
) -> Spectrum:
    """The largest eigenvalue of each degree over standard Gaussian inputs in R^d.

    A degree's eigenfunctions are spherical harmonics times functions of the radius, so each degree is an integral operator
    in the radius: Gauss–Laguerre in |x|², Gauss–Jacobi in the angle, then a matrix of `radii` rows. Double precision, so
    eigenvalues below 1e-13 of K(x, x) are noise. `variance` counts all radial eigenvalues of a degree.

    Examples:
        >>> from ntkscope.infinite import Dense
        >>> [round(v, 9) for v in gaussian(Dense(), 5, "nngp", degrees=2).variance.abs().tolist()]
        [0.0, 1.0, 0.0]
    """
    layers = Serial((from_module(net, init=init) if isinstance(net, nn.Module) else net,))
    layers.shape(Shape(d), "")
    squares, mass = roots_genlaguerre(radii, d / 2 - 1)
    kept = mass > 0
    q = torch.from_numpy(2 * squares[kept] / d)
    mass = torch.from_numpy(mass[kept] / mass[kept].sum())
    t, w = (torch.from_numpy(a) for a in roots_jacobi(angles, (d - 3) / 2, (d - 3) / 2))
    tangent = kind == "ntk"
    noted: dict[str, Any] = {}
    context = Context(noted, None, tangent)
    single = layers.propagate(Field(q), context, "", Need.SAME)
    cov = t[:, None, None] * torch.outer(q, q).sqrt()
    pairs = layers.propagate(Field(cov), Context(noted, noted, tangent), "", Need.SAME)
    assert single is not None
    assert pairs is not None
    K, trace = (pairs.ntk, single.ntk) if tangent else (pairs.nngp, single.nngp)
    assert K is not None
    assert trace is not None
    total = float((trace * mass).sum())
    legendre = [torch.ones_like(t), t]
    tops, variances = [], []
    for k in range(degrees + 1):
        if k > 1:
            legendre.append(((2 * k + d - 4) * t * legendre[-1] - (k - 1) * legendre[-2]) / (k + d - 3))
        operator = (
            torch.einsum("t,tij->ij", w * legendre[k] / w.sum(), K.expand(cov.shape)) * torch.outer(mass, mass).sqrt()
        )
        found = torch.linalg.eigvalsh((operator + operator.T) / 2)
        tops.append(float(found[-1]))
        variances.append(float(found.sum()) * harmonics(d, k))
    values = torch.tensor(tops, dtype=torch.float64)
    variance = torch.tensor(variances, dtype=torch.float64)
    logs = torch.where(values > 0, values.clamp(min=5e-324).log10(), -math.inf)
    return Spectrum("gaussian", d, kind, values, logs, variance, variance / total, total, 15)

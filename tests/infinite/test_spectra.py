"""Spectra by degree against arithmetic of 250 digits, against all points of small cubes, and against sampled inputs."""

from __future__ import annotations

import math
from itertools import combinations

import mpmath
import pytest
import torch

import ntkscope as ns
from ntkscope import infinite
from ntkscope.data.boolean_cube import parity
from ntkscope.infinite import (
    Activation,
    Dense,
    Erf,
    Gelu,
    LayerNorm,
    Relu,
    Residual,
    boolean_cube,
    gaussian,
    harmonics,
    serial,
    sphere,
)
from ntkscope.infinite.layer import Layer
from ntkscope.infinite.rules import Concat, Rbf

TWO = Dense(2.0, 2.0)
NETWORKS: dict[str, Layer] = {
    "relu": serial(TWO, Relu(), TWO),
    "relu without bias": serial(Dense(), Relu(), Dense(), Relu(), Dense()),
    "erf": serial(Dense(2.0), Erf(), Dense(2.0), Erf(), Dense(2.0)),
    "gelu, residual, norm": serial(
        Dense(1.2, 0.3), Gelu(), Dense(1.2, 0.1), Residual(Relu(), Dense(0.7)), LayerNorm(), Erf(), TWO
    ),
    "rbf beside relu": serial(TWO, Concat((serial(Rbf(0.3), TWO), serial(Relu(normalize=True), TWO))), Relu(), Dense()),
}


def by_krawtchouk(phi: list[mpmath.mpf], d: int) -> list[mpmath.mpf]:
    """μ_k = 2^{−d} Σ_r C(d, r) Φ(1 − 2r/d) K_k(r) / C(d, k), Krawtchouk polynomials by their three-term recurrence."""
    before, now, found = [mpmath.mpf(0)] * (d + 1), [mpmath.mpf(1)] * (d + 1), []
    for k in range(d + 1):
        total = mpmath.fsum(math.comb(d, r) * phi[r] * now[r] for r in range(d + 1))
        found.append(total / (mpmath.mpf(2) ** d * math.comb(d, k)))
        after = [((d - 2 * r) * now[r] - (d - k + 1) * before[r]) / (k + 1) for r in range(d + 1)]
        before, now = now, after
    return found


def relu_by_hand(t: mpmath.mpf, kind: str) -> mpmath.mpf:
    """σ_w = σ_b = 2, one hidden layer: q = 8 before it."""
    c = (4 * t + 4) / 8
    angle = mpmath.acos(c)
    value = 8 * (mpmath.sqrt(1 - c * c) + (mpmath.pi - angle) * c) / (2 * mpmath.pi)
    slope = (mpmath.pi - angle) / (2 * mpmath.pi)
    nngp = 4 * value + 4
    return nngp if kind == "nngp" else nngp + 4 * (4 * t + 4) * slope


def erf_by_hand(t: mpmath.mpf, kind: str) -> mpmath.mpf:
    """σ_w = 2, σ_b = 0, two hidden layers."""
    q, cov, ntk = mpmath.mpf(4), 4 * t, 4 * t
    for _ in range(2):
        norm = 1 + 2 * q
        slope = 4 / mpmath.pi / mpmath.sqrt(norm**2 - 4 * cov**2)
        q, cov = (2 / mpmath.pi * mpmath.asin(2 * c / norm) for c in (q, cov))
        q, cov, ntk = 4 * q, 4 * cov, 4 * ntk * slope + 4 * cov
    return cov if kind == "nngp" else ntk


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("d", [128, pytest.param(256, marks=pytest.mark.nightly)])
def test_every_degree_against_250_digits(kind: str, d: int) -> None:
    for name, by_hand in (("relu", relu_by_hand), ("erf", erf_by_hand)):
        found = boolean_cube(NETWORKS[name], d, kind)
        with mpmath.workdps(250 if d == 128 else 500):
            exact = by_krawtchouk([by_hand(mpmath.mpf(d - 2 * r) / d, kind) for r in range(d + 1)], d)
            for k in range(d + 1):
                if abs(exact[k]) < mpmath.mpf(10) ** (-200 if d == 128 else -400):  # rounding: by symmetry it is zero
                    assert float(found.eigenvalues[k]) == 0.0
                    assert name == "erf"
                    assert k % 2 == 0
                else:
                    assert abs(float(found.eigenvalues[k]) / exact[k] - 1) < 1e-12
        assert float(found.variance.sum()) == pytest.approx(found.total, rel=1e-12)
        assert float(found.fractional_variance.sum()) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", NETWORKS)
def test_parities_are_eigenfunctions_of_the_whole_cube(name: str, kind: str) -> None:
    split = ns.data.load("boolean-cube", dimension=7, dtype="float64")
    x = split.train.x
    K = infinite.kernel(NETWORKS[name], x, kind=kind).dense() / len(x)
    found = boolean_cube(NETWORKS[name], 7, kind)
    for k in range(8):
        for subset in list(combinations(range(7), k))[:5]:
            u = parity(x, subset)
            torch.testing.assert_close(K @ u, found.eigenvalues[k] * u, rtol=0, atol=1e-12 * found.total)
    assert float(K[0, 0]) * len(x) == pytest.approx(found.total, rel=1e-13)


def test_what_the_review_says() -> None:
    """Constants dominate for ReLU with biases, linear functions for erf without; 1/λ values of the ledger at d = 128."""
    relu = boolean_cube(serial(Dense(2**0.5, 2**0.5), Relu(), Dense(2**0.5, 2**0.5)), 128, "nngp")
    assert float(relu.fractional_variance[0]) == pytest.approx(0.74, abs=5e-3)
    erf = boolean_cube(serial(Dense(), Erf(), Dense()), 128, "nngp")
    assert float(erf.fractional_variance[1]) == pytest.approx(0.915, abs=5e-4)
    assert bool((erf.eigenvalues[::2] == 0).all())


def test_small_numbers_are_not_called_zero() -> None:
    """A radial basis function: μ_d is of the order d^{−d}, far below a double's ε."""
    found = boolean_cube(serial(Dense(0.5), Rbf(), Dense()), 96, "nngp")
    assert bool(torch.isfinite(found.log10).all())
    assert -300 < float(found.log10[-1]) < -150


@pytest.mark.nightly
def test_functions_without_a_closed_form_say_what_they_know() -> None:
    """erf as a series against its closed form; what carries nothing is NaN, what vanishes by symmetry is zero."""
    closed, series = (boolean_cube(serial(Dense(), f, Dense(), f, Dense()), 32) for f in (Erf(), Activation(torch.erf)))
    known = ~series.eigenvalues.isnan()
    assert int(known.sum()) > 20
    torch.testing.assert_close(series.variance[known], closed.variance[known], rtol=0, atol=1e-14 * closed.total)
    assert bool((closed.fractional_variance[~known] < 1e-11).all())
    assert bool((series.eigenvalues[::2] == 0).all())


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_sphere_of_three_dimensions_by_legendre(kind: str) -> None:
    """λ_k = ½ ∫ Φ P_k dt on S², by mpmath's own integration."""
    found = sphere(NETWORKS["relu"], 3, kind, degrees=4)
    with mpmath.workdps(30):
        for k in range(5):
            expected = mpmath.quad(lambda t, k=k: relu_by_hand(t, kind) * mpmath.legendre(k, t), [-1, 0, 1]) / 2
            assert float(found.eigenvalues[k]) == pytest.approx(float(expected), rel=1e-11)
    assert [harmonics(3, k) for k in range(5)] == [1, 3, 5, 7, 9]


def test_sphere_and_gaussian_come_near_the_cube_in_high_dimension() -> None:
    """All three agree to leading order in 1/d, degree by degree (Yang & Salman 2019)."""
    cube, ball = (f(NETWORKS["relu"], 256, "nngp") for f in (boolean_cube, lambda *a: sphere(*a, degrees=4)))
    cloud = gaussian(NETWORKS["relu"], 256, "nngp", degrees=3)
    for k in range(4):
        assert float(ball.fractional_variance[k]) == pytest.approx(float(cube.fractional_variance[k]), rel=0.02)
        assert float(cloud.fractional_variance[k]) == pytest.approx(
            float(cube.fractional_variance[k]), rel=0.05, abs=2e-3
        )


@pytest.mark.parametrize("domain", ["sphere", "gaussian"])
def test_the_share_of_linear_functions_on_sampled_inputs(domain: str) -> None:
    """On the sphere E[K(x, x′) x·x′] = d λ₁; over the Gaussian E[K(x, x)] is the sum of all variances. By Monte Carlo."""
    d, n, net = 6, 4000, NETWORKS["relu"]
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, d, generator=draw, dtype=torch.float64) for _ in range(2))
    if domain == "sphere":
        x, y = (v / v.norm(dim=1, keepdim=True) * math.sqrt(d) for v in (x, y))
        found = sphere(net, d, "nngp", degrees=2)
        parts = zip(x.split(500), y.split(500))
        pairs = torch.cat([infinite.kernel(net, a, b, "nngp").dense().diagonal() for a, b in parts])
        values, expected = pairs * (x * y).sum(1), float(found.eigenvalues[1]) * d
    else:
        found = gaussian(net, d, "nngp", degrees=8)
        assert float(found.fractional_variance.sum()) == pytest.approx(1.0, abs=5e-3)  # degrees above 8 carry little
        values = torch.cat([infinite.kernel(net, a, kind="nngp").diagonal() for a in x.split(500)])
        expected = found.total
    assert float(values.mean()) == pytest.approx(expected, abs=4 * float(values.std()) / math.sqrt(n))

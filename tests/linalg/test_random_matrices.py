"""The laws of noise against quadrature, large matrices, Painlevé's equation and published moments."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate
from torch.testing import assert_close

from ntkscope.core import UsageError, generator
from ntkscope.linalg import marchenko_pastur
from ntkscope.linalg.random_matrices.tracy_widom import MEAN, VARIANCE, tracy_widom_sf

RATIOS = (0.05, 0.5, 1.0, 1.5, 8.0)


class TestMarchenkoPastur:
    @pytest.mark.parametrize("ratio", RATIOS)
    @pytest.mark.parametrize("scale", [1.0, 0.3])
    def test_the_cdf_is_the_integral_of_the_density(self, ratio: float, scale: float) -> None:
        law = marchenko_pastur(ratio, scale)
        low, high = law.edges
        for share in (0.1, 0.5, 0.9):
            x = low + share * (high - low)
            # with x = a + (b - a) sin² t the integrand is smooth at both edges, also where the density has a pole at 0
            angle = math.asin(math.sqrt(share))
            mass = integrate.quad(
                lambda t: law.density(low + (high - low) * math.sin(t) ** 2) * (high - low) * math.sin(2 * t), 0, angle
            )[0]
            assert law.cdf(x) == pytest.approx(law.atom + mass, abs=1e-9)  # the accuracy that quad is asked for
            assert law.quantile(law.cdf(x)) == pytest.approx(x, rel=1e-9)
        assert law.cdf(high) == 1
        assert law.cdf(np.array([-1.0, 2 * high])).tolist() == [0, 1]

    @pytest.mark.parametrize(("rows", "columns"), [(400, 800), (800, 400), (500, 500)])
    def test_a_large_gaussian_matrix_follows_it(self, rows: int, columns: int) -> None:
        W = 0.7 * torch.randn(rows, columns, generator=generator(0, "mp"), dtype=torch.float64)
        law = marchenko_pastur(rows / columns, 0.7)
        values = torch.linalg.svdvals(W).square() / columns
        values = torch.cat([values, torch.zeros(max(0, rows - columns), dtype=torch.float64)]).sort().values
        shares = (torch.arange(rows) + 0.5) / rows
        inside = values > 1e-9
        assert (
            float((law.cdf(values) - shares)[inside].abs().max()) < 0.01
        )  # eigenvalues are rigid: a few spacings, 1/400
        wrong = marchenko_pastur(rows / columns, 0.8)
        assert float((wrong.cdf(values) - shares)[inside].abs().max()) > 0.03

    def test_tensors_floats_and_arrays(self) -> None:
        law = marchenko_pastur(0.5)
        x = torch.tensor([0.5, 1.0])
        assert_close(law.cdf(x), torch.from_numpy(law.cdf(x.double().numpy())))
        assert isinstance(law.density(1.0), float)
        assert law.atom == 0
        assert marchenko_pastur(2.0).quantile(0.4) == 0  # half of the eigenvalues are zeros
        assert marchenko_pastur(1.5).edges[1] == pytest.approx(4.949490, abs=1e-6)  # of W Wᵀ/d, h 1500, d 1000

    def test_quantiles_are_of_probabilities(self) -> None:
        with pytest.raises(UsageError, match=r"\[0, 1\]"):
            marchenko_pastur(1.0).quantile(1.5)


def painleve(points: list[float]) -> list[float]:
    """`1 - F₁` at descending points: Taylor series of `q'' = s q + 2 q³`, q ~ Ai at 46, and of its integrals."""
    with mpmath.workdps(110):
        s = mpmath.mpf(46)
        airy, slope = mpmath.airyai(s), mpmath.airyai(s, derivative=1)
        q, dq = airy, slope
        u = slope**2 - s * airy**2  # ∫ q² from s on
        v = (2 * s**2 * airy**2 - 2 * s * slope**2 - airy * slope) / 3  # ∫ (x - s) q²
        w = mpmath.mpf(1) / 3 - mpmath.airyai(s, derivative=-1)  # ∫ q
        found = []
        for point in points:
            while s > point:
                h = max(mpmath.mpf(point) - s, mpmath.mpf(-1))
                a = [q, dq]
                squares = []
                for k in range(40):
                    squares.append(sum(a[i] * a[k - i] for i in range(k + 1)))
                    cube = sum(squares[i] * a[k - i] for i in range(k + 1))
                    a.append((s * a[k] + (a[k - 1] if k else 0) + 2 * cube) / ((k + 1) * (k + 2)))
                v = v - sum(
                    ([u] + [-squares[k] / (k + 1) for k in range(40)])[k] * h ** (k + 1) / (k + 1) for k in range(41)
                )
                u = u - sum(squares[k] * h ** (k + 1) / (k + 1) for k in range(40))
                w = w - sum(a[k] * h ** (k + 1) / (k + 1) for k in range(41))
                q, dq = (sum(a[k] * h**k for k in range(42)), sum(k * a[k] * h ** (k - 1) for k in range(1, 42)))
                s = s + h
            found.append(float(1 - mpmath.exp(-(v + w) / 2)))
        return found


class TestTracyWidom:
    def test_against_painleve(self) -> None:
        """The table, interpolated from determinants, against the differential equation: nothing in common."""
        edges = np.array([-10.0, -6.0, -2.0, 2.0, 8.0, 18.0, 40.0])
        x = np.unique(np.concatenate([np.linspace(-11, 45, 40), edges, edges - 1e-9]))
        np.testing.assert_allclose(tracy_widom_sf(x[::-1]), painleve(x[::-1].tolist()), rtol=3e-10, atol=0)

    def test_published_moments(self) -> None:
        """Bornemann (2010), table 4, from `b - ∫F` and `b² - 2 ∫ x F` on (-9, 11), where F goes from 0 to 1, by quadrature."""
        nodes, weights = np.polynomial.legendre.leggauss(48)
        x, weights = 1 + 10 * nodes, 10 * weights
        law = 1 - tracy_widom_sf(x)
        first, second = 11 - (weights * law).sum(), 121 - 2 * (weights * x * law).sum()
        assert first == pytest.approx(MEAN, abs=1e-8)
        assert second - first**2 == pytest.approx(VARIANCE, abs=1e-7)  # 22 times the error of the first
        assert (MEAN, VARIANCE) == (-1.2065335745820, 1.6077810345810)

    def test_ends_and_types(self) -> None:
        assert (tracy_widom_sf(-math.inf), tracy_widom_sf(-14.5), tracy_widom_sf(math.inf)) == (1, 1, 0)
        assert math.isnan(tracy_widom_sf(math.nan))
        assert tracy_widom_sf(60.0) == pytest.approx(1.79363086003985e-137, rel=1e-10)  # ∫ Ai / 2 by mpmath
        grid = torch.linspace(-9, 39, 40, dtype=torch.float64).view(2, 5, 4)
        assert torch.equal(tracy_widom_sf(grid).view(-1), tracy_widom_sf(grid.reshape(-1)))

"""What every nonlinearity of infinite width must do: a new one's test class inherits `NonlinearityContract`.

class TestMine(NonlinearityContract):
    def layer(self):
        return Mine()
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from ntkscope import infinite
from ntkscope.core import UsageError

# q1, q2, correlation: equal and unequal variances, small and large, nearly parallel, opposite
POINTS = [(1.0, 1.0, 0.3), (0.5, 2.0, -0.7), (0.01, 3.0, 0.9), (2.0, 2.0, 0.999), (1.5, 0.7, -0.95), (1.0, 1.0, 0.0)]


def gaussian_mean(f: Callable[[Tensor, Tensor], Tensor], q1: float, q2: float, rho: float) -> float:
    """E[f(u, v)] by quadrature in polar coordinates, angles cut where u or v change sign: exact for kinks at zero too."""
    turn = math.acos(max(-1.0, min(1.0, rho)))
    cuts = sorted({(a + turn * b) % (2 * math.pi) for a in (math.pi / 2, 3 * math.pi / 2) for b in (0, 1)} | {0.0})
    cuts = [*cuts, 2 * math.pi]
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(40))
    angle = torch.cat([(b - a) / 2 * x + (a + b) / 2 for a, b in pairwise(cuts)])
    arc = torch.cat([(b - a) / 2 * w for a, b in pairwise(cuts)])
    edges = torch.linspace(0, 12, 9, dtype=torch.float64)
    radius = torch.cat([(b - a) / 2 * x + (a + b) / 2 for a, b in pairwise(edges)])
    step = torch.cat([(b - a) / 2 * w for a, b in pairwise(edges)])
    u = math.sqrt(q1) * radius[:, None] * torch.cos(angle)
    v = math.sqrt(q2) * radius[:, None] * torch.cos(angle - turn)
    density = (step * radius * torch.exp(-(radius**2) / 2))[:, None] * arc / (2 * math.pi)
    return float((f(u, v) * density).sum())


def derivative(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    z = z.detach().requires_grad_(True)
    return torch.autograd.grad(f(z).sum(), z)[0]


class NonlinearityContract(ABC):
    tolerance: ClassVar[float] = 1e-12  # closed forms and the quadrature agree to rounding

    @abstractmethod
    def layer(self) -> infinite.layer.Nonlinearity: ...

    def pair(self, q1: float, q2: float, rho: float) -> tuple[float, float]:
        a, b = (torch.tensor([q], dtype=torch.float64) for q in (q1, q2))
        values, slopes = self.layer().covariances(rho * (a * b).sqrt(), a, b, True)
        assert slopes is not None
        return float(values), float(slopes)

    @pytest.mark.parametrize("point", POINTS)
    def test_both_covariances_are_what_quadrature_says(self, point: tuple[float, float, float]) -> None:
        f = self.layer().function
        expected = gaussian_mean(lambda u, v: f(u) * f(v), *point)
        slope = gaussian_mean(lambda u, v: derivative(f, u) * derivative(f, v), *point)
        assert self.pair(*point) == pytest.approx((expected, slope), rel=self.tolerance, abs=self.tolerance)

    def test_moments_are_the_covariances_of_equal_inputs(self) -> None:
        q = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)
        values, slopes = self.layer().moments(q, True)
        again, slopes_again = self.layer().covariances(q, q, q, True)
        torch.testing.assert_close(again, values, rtol=max(self.tolerance, 1e-10), atol=1e-12)
        torch.testing.assert_close(slopes_again, slopes, rtol=max(self.tolerance, 1e-10), atol=1e-12)

    def test_derivative_in_the_covariance_is_the_slope(self) -> None:
        """Price's theorem: ∂E[σσ]/∂Σ = E[σ̇σ̇]; also at equal inputs, where a square root would give NaN."""
        q = torch.tensor([1.3], dtype=torch.float64)
        for rho in (-0.6, 0.0, 0.2, 0.9, 1.0):
            cov = (rho * q).requires_grad_(True)
            values, slopes = self.layer().covariances(cov, q, q, True)
            assert slopes is not None
            (found,) = torch.autograd.grad(values.sum(), cov, retain_graph=True)
            torch.testing.assert_close(found, slopes.detach(), rtol=1e-8, atol=1e-10)
            (second,) = torch.autograd.grad(slopes.sum(), cov, allow_unused=True)
            assert second is None or bool(torch.isfinite(second).all())

    def test_more_digits_say_the_same(self) -> None:
        for q1, q2, rho in POINTS:
            with mpmath.workdps(40):
                a, b = (np.array([mpmath.mpf(q)], dtype=object) for q in (q1, q2))
                cov = np.array([mpmath.mpf(rho) * mpmath.sqrt(mpmath.mpf(q1) * mpmath.mpf(q2))], dtype=object)
                exact = [float(value[0]) for value in self.layer().exact(cov, a, b)]
            assert self.pair(q1, q2, rho) == pytest.approx(exact, rel=1e-12, abs=1e-14)

    def test_its_normaliser_is_the_inverse_second_moment(self) -> None:
        f = self.layer().function
        second = gaussian_mean(lambda u, v: f(u).square(), 1.0, 1.0, 0.5)
        assert self.layer().normaliser() == pytest.approx(1 / second, rel=1e-11)

    def test_it_is_registered_and_refuses_what_is_not_gaussian(self) -> None:
        assert type(self.layer()) in infinite.registry.LAYERS.values()
        x = torch.ones(2, 3, dtype=torch.float64)
        with pytest.raises(UsageError, match="put a Dense or Conv"):
            infinite.kernel(infinite.serial(self.layer(), infinite.Dense()), x)

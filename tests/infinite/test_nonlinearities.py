"""Every nonlinearity against quadrature, Price's theorem and arithmetic of more digits."""

from __future__ import annotations

import math

import pytest
import torch

from contracts.infinite_rule import NonlinearityContract, gaussian_mean
from ntkscope import infinite
from ntkscope.core import UsageError
from ntkscope.infinite import Activation, Dense, Erf, Gelu, LeakyRelu, Relu, serial
from ntkscope.infinite.layer import Nonlinearity
from ntkscope.infinite.rules import Abs, Rbf, Sin


def test_the_quadrature_oracle_knows_moments() -> None:
    """E[uv] = Σ, E[u²v²] = q₁q₂ + 2Σ², E[1{u>0} 1{v>0}] = 1/4 + asin ρ / 2π."""
    assert gaussian_mean(lambda u, v: u * v, 2.0, 0.5, -0.3) == pytest.approx(-0.3, abs=1e-13)
    assert gaussian_mean(lambda u, v: u**2 * v**2, 2.0, 0.5, -0.3) == pytest.approx(1.18, abs=1e-12)
    both = gaussian_mean(lambda u, v: ((u > 0) & (v > 0)).double(), 1.0, 1.0, 0.7)
    assert both == pytest.approx(0.25 + math.asin(0.7) / (2 * math.pi), abs=1e-13)


class TestRelu(NonlinearityContract):
    def layer(self) -> Relu:
        return Relu()

    def test_equal_inputs_in_two_sets_have_the_values_of_one(self) -> None:
        """Rounding of a cosine near 1 by ε would be one of √ε ≈ 1e-8 in the angle."""
        x = torch.randn(20, 700, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        net = serial(*[layer for _ in range(5) for layer in (Dense(1.5, 0.3), Relu())], Dense())
        torch.testing.assert_close(
            infinite.kernel(net, x, x.clone()).dense(), infinite.kernel(net, x).dense(), rtol=1e-12, atol=0
        )

    def test_an_input_of_zeros_is_finite(self) -> None:
        x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
        K = infinite.kernel(serial(Dense(), Relu(), Dense(), Relu(), Dense()), x).dense()
        assert float(K[0].abs().max()) < 1e-140  # the smallest norm allowed


LAYERS: dict[str, Nonlinearity] = {
    "LeakyRelu": LeakyRelu(0.2),
    "Abs": Abs(),
    "Erf": Erf(),
    "Sin": Sin(1.3, 0.4),
    "Rbf": Rbf(0.7),
    "Gelu": Gelu(),
}
for title, kind in LAYERS.items():
    globals()[f"Test{title}"] = type(f"Test{title}", (NonlinearityContract,), {"layer": lambda self, kind=kind: kind})


class TestTanh(NonlinearityContract):
    def layer(self) -> Activation:
        return Activation(torch.tanh)

    @pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
    def test_the_stated_error_bounds_the_true_one(self, q: float) -> None:
        layer = Activation(torch.tanh, terms=12)
        point = torch.tensor([q], dtype=torch.float64)
        at_equal = float(layer.covariances(point, point, point, False)[0] - layer.moments(point, False)[0])
        second = float(layer.moments(point, False)[0])
        assert abs(at_equal) == pytest.approx(layer.error(q) * second, rel=1e-6)
        for rho in (0.5, -0.9, 0.99):
            expected = gaussian_mean(lambda u, v: torch.tanh(u) * torch.tanh(v), q, q, rho)
            assert (
                abs(float(layer.covariances(rho * point, point, point, False)[0]) - expected) <= layer.error(q) * second
            )

    def test_a_function_that_explodes_is_refused(self) -> None:
        one = torch.ones(1, dtype=torch.float64)
        with pytest.raises(UsageError, match="not finite"):
            Activation(lambda z: 1 / (z - z)).covariances(one, one, one, False)


def test_series_and_closed_form_agree_where_both_exist() -> None:
    q = torch.tensor([0.5, 1.5], dtype=torch.float64)
    cov = torch.tensor([0.2, -1.1], dtype=torch.float64)
    for closed in (Erf(), Gelu(), Sin(1.0, 0.2)):
        series = Activation(closed.function, terms=160)
        for a, b in zip(series.covariances(cov, q, q, True), closed.covariances(cov, q, q, True)):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_one_hidden_layer_by_hand() -> None:
    """Orthogonal unit inputs, c_σ = 2: Σ⁽¹⁾ = 1/π, Σ̇⁽¹⁾ = 1/2, so Θ = Σ⁽⁰⁾ Σ̇⁽¹⁾ + Σ⁽¹⁾ = 1/π, and 2 on the diagonal."""
    x = torch.eye(2, dtype=torch.float64)
    K = infinite.kernel(serial(Dense(math.sqrt(2)), Relu(normalize=True), Dense()), x).dense()
    assert K[0, 1].item() == pytest.approx(1 / math.pi, abs=1e-15)
    assert K[0, 0].item() == pytest.approx(2.0, abs=1e-15)
    # erf: Σ⁽¹⁾ = 2/π asin(0) = 0 off the diagonal; on it 2/π asin(2/3) + 4/π/√5
    K = infinite.kernel(serial(Dense(math.sqrt(2)), Erf(), Dense()), x).dense()
    assert K[0, 1].item() == 0.0
    assert K[1, 1].item() == pytest.approx(2 / math.pi * math.asin(2 / 3) + 4 / math.pi / math.sqrt(5), abs=1e-15)

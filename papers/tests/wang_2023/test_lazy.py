"""Lazy training: definitions written out, errata of the report that its printed forms fail, arguments that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import roots_hermitenorm
from torch import nn

from ntkscope.core import numpy_generator
from ntkscope.kernels import kernel
from ntkscope_papers.wang_2023 import lazy
from ntkscope_papers.wang_2023 import two_layer as two
from ntkscope_papers.wang_2023.two_layer import Shape, items_of, network, sigma, weights_of

CPU = torch.device("cpu")
SCALE = 1.592537  # of tanh, so that its second moment is 1


def naive_moments() -> tuple[float, list[float]]:
    """Gauss–Hermite quadrature of (1 - tanh²)² and of (1 - tanh²) times 1, z, (z² - 1)/√2."""
    z, w = roots_hermitenorm(200)
    w = w / w.sum()
    tanh = np.tanh(z)
    slope = (1 - tanh**2) / math.sqrt(w @ tanh**2)
    return float(w @ slope**2), [float(w @ (slope * he)) for he in (np.ones_like(z), z, (z**2 - 1) / math.sqrt(2))]


def test_constants_of_the_normalised_tanh() -> None:
    """Claims spectra-activation-constants and spectra-lambda-min-bound, to six digits, and a quadrature written out."""
    found = lazy.slope_moments(sigma)
    second, eta = naive_moments()
    assert found.second == pytest.approx(second, abs=1e-10)
    assert found.coefficients == pytest.approx(eta, abs=1e-10)
    assert found.second == pytest.approx(1.177807, abs=1e-6)
    assert [value**2 for value in found.coefficients] == pytest.approx([0.930470, 0.0, 0.167643], abs=1e-6)
    assert lazy.least_eigenvalue_bound(sigma) == pytest.approx(0.079694, abs=1e-6)
    assert lazy.least_eigenvalue_limit(sigma, 2.0) == pytest.approx(0.247337, abs=1e-6)
    assert lazy.alpha_of(lazy.least_eigenvalue_bound(sigma)) == pytest.approx(0.141151, abs=1e-6)
    assert lazy.lipschitz_constant(sigma) == pytest.approx(SCALE, abs=1e-6)


def test_moments_of_relu_are_known() -> None:
    """σ' is a step: a = 1/2, η₀ = 1/2, η₁ = φ(0), η₂ = 0."""
    found = lazy.slope_moments(torch.relu)
    assert found.second == pytest.approx(0.5, abs=1e-9)
    assert found.coefficients == pytest.approx((0.5, 1 / math.sqrt(2 * math.pi), 0.0), abs=1e-9)


def test_the_limit_below_and_above_as_many_items_as_dimensions() -> None:
    assert lazy.least_eigenvalue_limit(sigma, 1.0) == pytest.approx(lazy.least_eigenvalue_limit(sigma, 3.0))
    few = lazy.least_eigenvalue_limit(sigma, 0.25)
    assert few == pytest.approx(1.177807 - 0.930470 * (1 - 0.25), abs=1e-5)
    assert lazy.least_eigenvalue_limit(sigma, 0.25, variance=1 / 3) == pytest.approx(few / 3)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_kernel_machine_is_the_least_change_of_parameters(seed: int) -> None:
    """Eq. 78 against the pseudo-inverse in parameter space, on random Jacobians."""
    random = numpy_generator(seed, "test", "lazy prediction")
    n, m, outputs = (int(v) for v in random.integers((2, 1, 1), (9, 6, 4)))
    p = n + int(random.integers(1, 20))
    J, J_test = random.normal(size=(n, p)), random.normal(size=(m, p))
    y, start, start_test = (random.normal(size=(k, outputs)) for k in (n, n, m))
    change = np.linalg.pinv(J) @ (y - start)
    expected = start_test + J_test @ change
    found = lazy.lazy_prediction(J @ J.T, J_test @ J.T, y, start, start_test)
    assert found == pytest.approx(expected, abs=1e-6 * np.linalg.cond(J) ** 2 / 100 + 1e-8)
    flat = lazy.lazy_prediction(torch.from_numpy(J @ J.T), J_test @ J.T, y[:, 0], start[:, 0], start_test[:, 0])
    assert flat == pytest.approx(found[:, 0], abs=1e-9)


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_the_inequalities_step_by_step(seed: int, steps: int) -> None:
    random = numpy_generator(seed, "test", "inequalities")
    loss, away, moves = random.uniform(0.01, 2, steps + 1), random.uniform(0, 3, steps + 1), random.uniform(0, 1, steps)
    alpha, lr, n = (float(v) for v in random.uniform((0.05, 0.1, 5), (1.0, 2.0, 50)))
    bound, rate, distance = loss[0], 0.0, 0.0
    for t in range(1, steps + 1):
        bound *= 1 - lr * alpha**2 / (2 * n)
        rate = max(rate, loss[t] / bound)
        distance = max(distance, (alpha / 4 * away[t] + loss[t]) / loss[0])
    found = lazy.global_convergence(loss, away, moves, alpha=alpha, lr=lr, items=n)
    assert found.rate == pytest.approx(rate, rel=1e-10)
    assert found.distance == pytest.approx(distance, rel=1e-12)
    assert found.path == pytest.approx(sum(moves) / (4 * loss[0] / alpha), rel=1e-12)
    assert found.holds == (max(rate, distance, found.path) <= 1 + 1e-12)


def test_kernels_of_the_two_layer_network_are_those_of_autograd() -> None:
    """Eq. 76 and 77 against the engine; erratum spectra-ck-definition: without 1/√d, as section 4.1 prints it, it is not."""
    shape = Shape(12, 9, 14)
    model, x = network(shape, 1, law="normal").double(), items_of(shape, 1, CPU).x
    W, v = weights_of(model)
    whole, last = (kernel("trntk0", model, x, params=which).dense() for which in (None, "last"))
    torch.testing.assert_close(two.conjugate_kernel(W, x), last, rtol=0, atol=1e-12)
    torch.testing.assert_close(two.first_layer_kernel(W, v, x) + last, whole, rtol=0, atol=1e-10)
    assert float((two.conjugate_kernel(W, x, divided=False) - last).abs().max()) > 0.3


def test_eq_83_is_loose_and_needs_the_second_moment_of_v() -> None:
    """Erratum spectra-lambda-min-bound: λ_min tends to a - η₀², not to Eq. 83; with v uniform it is below the printed 0.08."""
    shape, bound, limit = Shape.of(150), lazy.least_eigenvalue_bound(sigma), lazy.least_eigenvalue_limit(sigma, 2.0)
    x = items_of(shape, 0, CPU).x
    least = {}
    for law in ("sign", "uniform"):
        W, v = weights_of(network(shape, 0, law=law))
        least[law] = float(torch.linalg.eigvalsh(two.first_layer_kernel(W, v, x))[0])
    assert least["sign"] > bound
    assert abs(least["sign"] - limit) < abs(least["sign"] - bound)
    assert least["uniform"] < bound  # as printed, it fails
    assert least["uniform"] > lazy.least_eigenvalue_bound(sigma, variance=1 / 3)


def run_at(rate_constant: float, alpha: float, scale: float) -> lazy.GlobalConvergence:
    shape = Shape(80, 40, 60)
    rate = 0.99 * lazy.largest_rate(alpha, shape.items, shape.ratio, rate_constant)
    made = two.descend(shape, [0], [rate], steps=60, device=CPU, scale=scale, follow="all")
    return lazy.global_convergence(
        np.concatenate(made.residuals),
        np.concatenate(made.distances),
        np.concatenate(made.moves),
        alpha=alpha,
        lr=rate,
        items=shape.items,
    )


def test_theorem_4_2_holds_with_the_lipschitz_constant_and_fails_with_the_printed_one() -> None:
    """Erratum spectra-theorem-4-2-rate: `λ_α` is λ_σ. Read as α it lets the step grow until descent no longer contracts."""
    shape, scale = Shape(80, 40, 60), 3.0
    W, v = weights_of(network(shape, 0))
    least = scale**2 * float(torch.linalg.eigvalsh(two.first_layer_kernel(W, v, items_of(shape, 0, CPU).x))[0])
    alpha = lazy.alpha_of(least)
    assert run_at(scale * SCALE, alpha, scale).holds
    assert run_at(alpha, alpha, scale).rate > 1


def test_the_residual_norm_is_not_the_training_loss() -> None:
    """Theorem 4.2 calls ℓ the training loss: Eq. 85, 86 hold for the norm of the residual and fail for the loss of Eq. 74.

    A residual of size s moves W in proportion to s, while the loss goes with s²: for small s the printed reading fails.
    """
    steps, n, alpha, lr, s = 40, 50, 0.3, 0.2, 0.02
    shrink = 1 - lr * alpha**2
    residuals = s * math.sqrt(n) * shrink ** np.arange(steps + 1)
    moves = lr * alpha / n * residuals[:-1] * 2
    distances = np.concatenate([[0], np.cumsum(moves)])
    assert lazy.global_convergence(residuals, distances, moves, alpha=alpha, lr=lr, items=n).holds
    loss = residuals**2 / (2 * n)
    wrong = lazy.global_convergence(loss, distances, moves, alpha=alpha, lr=lr, items=n)
    assert max(wrong.distance, wrong.path) > 1


def test_smooth_activations_have_a_lipschitz_constant() -> None:
    assert lazy.lipschitz_constant(nn.Softplus()) == pytest.approx(1.0, abs=1e-6)
    assert lazy.lipschitz_constant(torch.erf) == pytest.approx(2 / math.sqrt(math.pi), abs=1e-6)
    assert lazy.lipschitz_constant(lambda z: 2 * z) == 2.0

"""Early training against autograd, non-crossing partitions and Monte Carlo; each erratum with the printed form failing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import generator
from ntkscope_papers.beaglehole_2024 import derivatives as early
from ntkscope_papers.beaglehole_2024 import free_products as free
from ntkscope_papers.beaglehole_2024 import gaussian_words as gaussian
from ntkscope_papers.beaglehole_2024.expected_kernel import expected_kernel
from ntkscope_papers.beaglehole_2024.matrices import layer_view
from oracles import free_words

LOSSES = ("squares", "mean squares", "cross-entropy")


def normal(*shape: int, seed: int, name: str = "x") -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "test early", name), dtype=torch.float64)


def close(found: Tensor, expected: Tensor, error: float = 1e-10) -> bool:
    return float((found - expected).norm()) <= error * float(expected.norm())


def network(depth: int, width: int, d: int, c: int, activation: str, seed: int) -> nn.Sequential:
    options = {"widths": width, "depth": depth, "bias": False, "sigma_w": 1.0, "activation": activation, "seed": seed}
    made = ns.models.build("mlp", in_features=d, classes=c, **options).double()
    assert isinstance(made, nn.Sequential)
    return made


def loss_of(kind: str, outputs: Tensor, seed: int) -> Tensor:
    n, c = outputs.shape
    if kind == "cross-entropy":
        labels = torch.randint(c, (n,), generator=generator(seed, "labels"))
        return nn.functional.cross_entropy(outputs, labels)
    gap = outputs - normal(n, c, seed=seed, name="y")
    return gap.square().sum() / 2 if kind == "squares" else gap.square().mean()


def derivatives_of(kind: str, outputs: Tensor, seed: int) -> Tensor:
    free_outputs = outputs.detach().clone().requires_grad_()
    return torch.autograd.grad(loss_of(kind, free_outputs, seed), free_outputs)[0]


@settings(max_examples=25, deadline=None)
@given(
    depth=st.integers(1, 3),
    width=st.integers(1, 6),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(2, 4)),
    activation=st.sampled_from(["relu", "tanh", "quadratic", "gelu"]),
    kind=st.sampled_from(LOSSES),
    seed=st.integers(0, 10**6),
)
def test_proposition_4_for_every_layer_loss_and_number_of_outputs(
    depth: int, width: int, sizes: tuple[int, int, int], activation: str, kind: str, seed: int
) -> None:
    n, d, c = sizes
    model, x = network(depth, width, d, c, activation, seed), normal(n, d, seed=seed)
    loss_of(kind, model(x), seed).backward()
    for layer in (module for module in model if isinstance(module, nn.Linear)):
        view = layer_view(model, layer, x)
        D = derivatives_of(kind, view.outputs, seed)
        moved = -layer.weight.grad
        if float(moved.norm()) < 1e-12:  # dead units
            continue
        assert close(early.weight_velocity(view.inputs, view.tangents, D), moved)
        b = view.tangents.flatten(0, 1)
        K = b.T @ b
        expected = moved.T @ moved, moved.T @ K @ moved
        fast = early.feature_derivatives(view.inputs, view.tangents, D)
        rows = view.inputs.repeat_interleave(c, 0)
        slow = early.derivatives_from_kernel(rows, b @ b.T, D.flatten())
        for made in (fast, slow):
            assert close(made.nfm, expected[0])
            assert close(made.agop, expected[1])
        if float(expected[1].norm()) > 0:
            assert -1e-12 <= fast.correlation <= 1
        # With the 1/n that AGOP = WᵀKW needs, the second identity is off by n.
        assert n == 1 or not close(moved.T @ (K / n) @ moved, slow.agop, 1e-3)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 6), d=st.integers(1, 5), k=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_equations_16_to_23_are_identities(n: int, d: int, k: int, seed: int) -> None:
    X, y = normal(n, d, seed=seed), normal(n, seed=seed, name="y")
    W, a = free.draw_network(d, k, seed)
    R, S, B = W.T @ torch.diag(a**2) @ W, X.T @ torch.diag(y) @ X, X.T @ X
    A = S @ S
    found = early.quadratic_traces(X, y, W, a)
    words = A @ R @ A @ R @ B @ R, A @ R @ A @ R, A @ R @ B @ R @ A @ R @ B @ R
    for value, word in zip((found.numerator, found.first, found.second), words):
        assert value == pytest.approx(float(word.trace()) / d, rel=1e-10)
    direct = early.derivatives_from_kernel(X, early.quadratic_kernel(X, W, a), y)
    assert found.correlation == pytest.approx(direct.correlation, rel=1e-10)
    traces = direct.traces  # Eq. 4; the factor 4 of the kernel to the powers it enters with
    assert traces.numerator / 64 == pytest.approx(found.numerator, rel=1e-10)
    assert traces.second / 256 == pytest.approx(found.second, rel=1e-10)
    printed = traces.numerator * math.sqrt(traces.first * traces.second)  # Eq. 10 divides by inverse roots
    assert printed != pytest.approx(direct.correlation, rel=1e-3) or traces.first * traces.second == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(d=st.integers(1, 5), seed=st.integers(0, 10**6), cumulants=st.tuples(*[st.floats(0.1, 3.0)] * 4))
def test_equations_20_22_and_28_by_non_crossing_partitions(
    d: int, seed: int, cumulants: tuple[float, float, float, float]
) -> None:
    """The corrected forms are what freeness says, to rounding; the printed last term of Eq. 28 is not."""
    A, B = (m @ m.T for m in (normal(d, d, seed=seed), normal(d, d, seed=seed, name="b")))
    moments = free.moments_of_cumulants(cumulants)
    for p in range(4):
        assert moments[p] == pytest.approx(free_words.moment(cumulants, p + 1), rel=1e-12)
    data = free.DataTraces.of(A, B)
    assert free.numerator(data, moments) == pytest.approx(free_words.word([A, A, B], cumulants), rel=1e-10)
    assert free.first_denominator(data, moments) == pytest.approx(free_words.word([A, A], cumulants), rel=1e-10)
    exact = free_words.word([A, B, A, B], cumulants)
    assert free.second_denominator(data, moments) == pytest.approx(exact, rel=1e-10)
    gap = exact - free.second_denominator(data, moments, printed=True)
    assert gap == pytest.approx(data.b**2 * data.aa * moments[1] ** 2, rel=1e-6, abs=1e-10 * exact)


def test_equation_22_as_printed_is_the_same_number() -> None:
    A, B = (m @ m.T for m in (normal(4, 4, seed=1), normal(4, 4, seed=2)))
    a, r = float(A.trace()) / 4, (1.0, 4.0)
    printed = float((A @ A).trace()) / 4 * r[0] ** 2 + a**2 * r[1] - a**2 * r[0] ** 2
    assert free.first_denominator(free.DataTraces.of(A, B), r) == pytest.approx(printed, rel=1e-12)


def test_the_prediction_is_that_of_large_networks() -> None:
    """Four networks at n = d = k = 300, heavy-tailed as R is; Eq. 28 as printed is further off."""
    X = normal(300, 300, seed=4) * torch.linspace(0.2, 2.0, 300, dtype=torch.float64)
    y = 1 + 0.3 * normal(300, seed=4, name="y")
    observed = [early.quadratic_traces(X, y, *free.draw_network(300, 300, s)).correlation for s in range(4)]
    predicted = early.quadratic_prediction(X, y, moments=free.drawn_moments(300, 300, draws=4)[0])
    mean = sum(observed) / 4
    gap, printed = abs(predicted.correlation - mean), abs(predicted.printed_correlation - mean)
    assert gap < 0.015
    assert printed > max(0.02, 2 * gap)
    assert early.quadratic_prediction(X, y, width=300).correlation == pytest.approx(mean, abs=0.03)


def test_moments_of_r() -> None:
    assert free.free_moments(1024, 1024) == (1.0, 4.0, 25.0, 202.0)
    drawn = free.drawn_moments(5, 7, draws=1500, seed=1)
    exact = (1.0, 3 * (5 + 2) / 7 + 1 - 1 / 7)  # of E[tr R] and E[tr R²] at any size
    for value, error, wanted in zip(*drawn, exact):
        assert abs(value - wanted) <= 4 * error
    W, a = free.draw_network(4, 3, 0)
    R = W.T @ torch.diag(a**2) @ W
    powers = [float(torch.linalg.matrix_power(R, p).trace()) / 4 for p in range(1, 5)]
    assert free.trace_powers(W, a).tolist() == pytest.approx(powers, rel=1e-12)


@pytest.mark.parametrize(("k", "d", "n"), [(4, 3, 5), (8, 8, 4)])
def test_proposition_10_by_monte_carlo(k: int, d: int, n: int) -> None:
    """Means over 2e4 networks within 4 standard errors, each entry; the printed coefficients 3 and 6 are far off."""
    X, y, draws = normal(n, d, seed=6), normal(n, seed=6, name="y"), 20_000
    S, B = X.T @ torch.diag(y) @ X, X.T @ X
    W = normal(draws, k, d, seed=7) / math.sqrt(k)
    scaled = normal(draws, k, 1, seed=8) * W
    R = scaled.mT @ scaled
    wanted = early.expected_derivatives(X, y, k)
    agop = 16 * S @ R @ B @ R @ S
    for found, limit in ((4 * S @ R @ S, wanted.nfm), (agop, wanted.agop)):
        error = found.std(0) / math.sqrt(draws)
        assert bool(((found.mean(0) - limit).abs() <= 4.5 * error).all())
    printed = 3 * B.trace() * S @ S + 6 * S @ B @ S
    assert float((agop.mean(0) / 16 - printed).norm() / printed.norm()) > 0.5
    assert float((4 * S @ S - S @ S).norm()) > 0  # the 4 that Prop. 10 leaves out


@settings(max_examples=20, deadline=None)
@given(k=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_means_by_enumeration(k: int, seed: int) -> None:
    """Isserlis' sums against quadrature: nodes of Gauss-Hermite in one dimension, where words commute."""
    X, y = normal(3, 1, seed=seed), normal(3, seed=seed, name="y")
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(12))
    weights = weights / weights.sum()
    squares = torch.outer(nodes**2, nodes**2).flatten()  # a² w² of one unit, times k
    chances = torch.outer(weights, weights).flatten()
    raw = [float((chances * squares**p).sum()) for p in range(5)]
    moments = [1.0] + [0.0] * 4  # of the sum of k units
    for _ in range(k):
        moments = [sum(math.comb(p, j) * moments[j] * raw[p - j] for j in range(p + 1)) for p in range(5)]
    S, B = float((y * X[:, 0] ** 2).sum()), float((X**2).sum())
    found = early.expected_traces(X, y, k)
    assert found.numerator == pytest.approx(S**4 * B * moments[3] / k**3, rel=1e-9)
    assert found.first == pytest.approx(S**4 * moments[2] / k**2, rel=1e-9)
    assert found.second == pytest.approx(S**4 * B**2 * moments[4] / k**4, rel=1e-9)


def test_freeness_is_the_limit_of_the_exact_means() -> None:
    for d, error in ((100, 0.3), (10_000, 3e-3), (10**6, 3e-5)):
        exact, limit = gaussian.mean_moments(d, 2 * d), free.free_moments(d, 2 * d)
        assert max(abs(a / b - 1) for a, b in zip(exact, limit)) < error
    X, y = normal(40, 30, seed=33), normal(40, seed=33, name="y")
    free_one = early.quadratic_prediction(X, y, width=30).correlation
    assert 0 < abs(early.expected_traces(X, y, 30).correlation - free_one) < 0.05


@pytest.mark.parametrize("activation", ["relu", "quadratic"])
def test_the_mean_kernel_of_one_hidden_layer_is_exact_at_any_width(activation: str) -> None:
    X, draws, k = normal(4, 3, seed=9), 8_000, 2
    h = (normal(draws, k, 3, seed=10) / math.sqrt(3) @ X.T).requires_grad_()
    made = ns.models._layers.activation(activation)(h)
    slope = torch.autograd.grad(made.sum(), h)[0]
    b = normal(draws, k, 1, seed=11) / math.sqrt(k) * slope
    kernels = b.mT @ b
    error = kernels.std(0) / math.sqrt(draws)
    assert bool(((kernels.mean(0) - expected_kernel(X, activation=activation)).abs() <= 4.5 * error).all())


@pytest.mark.parametrize("width", [2, 5])
def test_the_mean_kernel_of_two_quadratic_layers_at_finite_width(width: int) -> None:
    X, draws = normal(3, 3, seed=12), 30_000
    h = normal(draws, 3, 3, seed=13)[..., :width, :] if width < 3 else normal(draws, width, 3, seed=13)
    h = h / math.sqrt(3) @ X.T
    W = normal(draws, width, width, seed=14) / math.sqrt(width)
    g = W @ h.square()
    b = W.mT @ (normal(draws, width, 1, seed=15) / math.sqrt(width) * 2 * g) * 2 * h
    kernels = b.mT @ b
    error = kernels.std(0) / math.sqrt(draws)
    options: dict[str, Any] = {"activation": "quadratic", "depth": 2}
    exact = expected_kernel(X, width=width, **options)
    assert bool(((kernels.mean(0) - exact).abs() <= 4.5 * error).all())
    assert close(expected_kernel(X, width=10**9, **options), expected_kernel(X, **options), 1e-6)
    assert not close(exact, expected_kernel(X, **options), 0.2)


def test_the_mean_kernel_with_depth_is_that_of_wide_networks() -> None:
    x, k = normal(5, 3, seed=16), 600
    model = network(2, k, 3, 1, "relu", 17)
    b = layer_view(model, model[1], x).tangents[:, 0]
    limit = expected_kernel(x, activation="relu", depth=2)
    assert float((b @ b.T - limit).norm() / limit.norm()) < 0.3  # a few √(5 / k)


def test_first_order_is_the_mean_kernel_in_equation_4() -> None:
    X, y = normal(6, 4, seed=21), normal(6, seed=21, name="y")
    kernel = expected_kernel(X, activation="relu", depth=2)
    expected = early.derivatives_from_kernel(X, kernel, y).correlation
    assert early.first_order_prediction(X, y, activation="relu", depth=2).correlation == expected
    # One quadratic layer: the mean term of Eq. 5 has E[𝒦²] as well, which differs from E[𝒦]² by 1/k.
    wide = early.expected_derivatives(X, y, 10**9).correlation
    assert early.first_order_prediction(X, y, activation="quadratic").correlation == pytest.approx(wide, abs=1e-6)


def test_constant_labels_are_labels() -> None:
    """Balance 1 of the alignment-reversing set has them."""
    X = normal(5, 3, seed=22)
    assert 0 < early.quadratic_prediction(X, torch.ones(5).double(), width=3).correlation <= 1

"""Recursive feature machines: the contract, and every closed form against brute force in float64."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.input_surrogate import InputClassifierContract, InputRegressorContract
from ntkscope.core import NumericalError, UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.linalg import NumericalWarning
from ntkscope.surrogates import RecursiveFeatureClassifier, RecursiveFeatureMachine
from ntkscope.surrogates.metrics import search as _metric_search
from ntkscope.surrogates.metrics.problem import tiling
from ntkscope.surrogates.metrics.radial import Radial, gradient_outer_product, squared_distances
from ntkscope.surrogates.metrics.search import Regression, climb, regress

FIXED: dict[str, Any] = {"bandwidth": 3.0, "alpha": 1e-2, "iterations": 2}


class TestRecursiveFeatureMachine(InputRegressorContract):
    estimator = RecursiveFeatureMachine
    searched: ClassVar = {"bandwidth": 2.0, "diagonal": True}
    quick: ClassVar = FIXED


class TestRecursiveFeatureClassifier(InputClassifierContract):
    estimator = RecursiveFeatureClassifier
    searched: ClassVar = {"alpha": 0.1, "kernel": "gaussian"}
    quick: ClassVar = FIXED


def data(n: int = 40, d: int = 4, outputs: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, d))
    return x, np.stack([x[:, 0] * x[:, 1] + k * np.sin(x[:, 2]) for k in range(outputs)], 1)


def naive_kernel(a: Tensor, b: Tensor, metric: Tensor, kind: str, bandwidth: float) -> Tensor:
    """κ with the distance written out, and no gradient where it is zero."""
    differences = a[:, None] - b[None]
    squares = torch.einsum("ijk,kl,ijl->ij", differences, metric, differences)
    if kind == "gaussian":
        return torch.exp(-squares / (2 * bandwidth**2))
    same = squares <= 1e-20
    distances = torch.where(same, 0.0, torch.where(same, 1.0, squares).sqrt())
    return torch.exp(-distances / bandwidth)


def naive(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, kind: str, *, diagonal: bool, intercept: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The recursion by dense solves and autograd, point by point: test predictions and the metric."""
    X, Y, T = (torch.from_numpy(a) for a in (x, y, x_test))
    n, d = X.shape
    metric = torch.eye(d, dtype=torch.float64)
    for iteration in range(FIXED["iterations"] + 1):
        system = torch.zeros(n + 1, n + 1, dtype=torch.float64)
        system[:n, :n] = naive_kernel(X, X, metric, kind, FIXED["bandwidth"]) + FIXED["alpha"] * torch.eye(n)
        system[n, n] = 0.0 if intercept else 1.0
        if intercept:
            system[n, :n] = system[:n, n] = 1.0
        solution = torch.linalg.solve(system, torch.cat([Y, torch.zeros(1, Y.shape[1])]))
        coef, b = solution[:n], solution[n]
        if iteration == FIXED["iterations"]:
            break
        outer = torch.zeros(d, d, dtype=torch.float64)
        for i in range(n):
            point = X[i].clone().requires_grad_()
            outputs = naive_kernel(point[None], X, metric, kind, FIXED["bandwidth"])[0] @ coef
            for output in outputs:
                (gradient,) = torch.autograd.grad(output, point, retain_graph=True)
                outer += torch.outer(gradient, gradient) / n
        outer = outer.diagonal().diag() if diagonal else outer
        metric = outer / outer.max()
    return (naive_kernel(T, X, metric, kind, FIXED["bandwidth"]) @ coef + b).numpy(), metric.numpy()


@given(
    n=st.integers(5, 25),
    d=st.integers(1, 5),
    outputs=st.integers(1, 3),
    kind=st.sampled_from(["laplace", "gaussian"]),
    diagonal=st.booleans(),
    intercept=st.booleans(),
    twice=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_the_recursion_is_that_of_autograd(
    n: int, d: int, outputs: int, kind: str, diagonal: bool, intercept: bool, twice: bool
) -> None:
    random = np.random.default_rng([n, d, outputs])
    x, y, x_test = random.normal(size=(n, d)), random.normal(size=(n, outputs)), random.normal(size=(3, d))
    if twice:
        x[1] = x[0]  # points that coincide: their pair has no gradient
    expected, metric = naive(x, y, x_test, kind, diagonal=diagonal, intercept=intercept)
    found = RecursiveFeatureMachine(kind, **FIXED, diagonal=diagonal, fit_intercept=intercept).fit(x, y)
    np.testing.assert_allclose(found.metric_, metric.diagonal() if diagonal else metric, atol=1e-9)
    np.testing.assert_allclose(found.predict(x_test), expected, atol=1e-8 * (1 + np.abs(expected).max()))


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_gradients_are_those_of_the_predictions(kind: str, diagonal: bool) -> None:
    x, y = data(outputs=2)
    fitted = RecursiveFeatureMachine(kind, **FIXED, diagonal=diagonal).fit(x, y)
    points, step = np.random.default_rng(1).normal(size=(5, 4)), 1e-5
    found = fitted.gradients(points)
    assert found.shape == (5, 2, 4)
    for k in range(4):
        move = step * np.eye(4)[k]
        difference = (fitted.logits(points + move) - fitted.logits(points - move)) / (2 * step)
        np.testing.assert_allclose(found[:, :, k], difference, atol=1e-7)


def test_leave_one_out_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_metric_search, "BLOCK", 8)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 3)))
    matrix = Radial("laplace", 2.0).values(squared_distances(x, x))
    y = x[:, :1].clone()
    inverse = torch.linalg.inv(matrix + 0.1 * torch.eye(30, dtype=torch.float64))
    fit = regress(Radial("laplace", 2.0), matrix, y, 0.1, intercept=False, leave_one_out=True)
    assert fit is not None
    assert fit.residuals is not None
    torch.testing.assert_close(fit.residuals, inverse @ y / inverse.diagonal()[:, None], atol=1e-9, rtol=0)


@given(n=st.integers(1, 9), m=st.integers(1, 9), far=st.sampled_from([0.0, 1e3, 1e6]))
@settings(max_examples=20, deadline=None)
def test_distances_keep_their_digits(n: int, m: int, far: float) -> None:
    random = np.random.default_rng([n, m])
    a, b = (torch.from_numpy(random.normal(size=(k, 3)) * 10.0 ** random.integers(-6, 1, (k, 1))) + far for k in (n, m))
    b[0] = a[0]
    exact = (a[:, None] - b[None]).square().sum(-1)
    found = squared_distances(a, b)
    assert float(found[0, 0]) == 0.0
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-13 * far * 1e-9)


def test_tiles_change_nothing() -> None:
    x, y = data(n=60, d=5, outputs=2)
    whole = RecursiveFeatureMachine(**FIXED).fit(x, y)
    least = _least(60, 5, 2)
    small = RecursiveFeatureMachine(**FIXED, memory=least).fit(x, y)
    assert small._learned.problem.tile < 10
    np.testing.assert_allclose(small.predict(x), whole.predict(x), atol=1e-9)
    np.testing.assert_allclose(small.metric_, whole.metric_, atol=1e-9)
    with pytest.raises(MemoryBudgetError, match="smallest budget that works"):
        RecursiveFeatureMachine(**FIXED, memory=least - 1).fit(x, y)


def _least(n: int, d: int, outputs: int) -> int:
    low, high = 1, 2**30
    while low < high:
        middle = (low + high) // 2
        try:
            tiling(n, d, outputs, middle)
            high = middle
        except MemoryBudgetError:
            low = middle + 1
    return low


def test_more_points_than_can_be_factorised_are_refused() -> None:
    with pytest.raises(UsageError, match="got 30000 training points"):
        tiling(30_000, 5, 1, 2**50)


class TestChoice:
    def test_the_metric_finds_the_coordinates_of_the_target(self) -> None:
        x, y = data(n=300, d=8)
        test, truth = data(n=200, d=8, seed=1)
        learned = RecursiveFeatureMachine().fit(x, y[:, 0])
        plain = RecursiveFeatureMachine(iterations=0).fit(x, y[:, 0])
        assert np.diag(learned.metric_)[:2].min() > 10 * np.diag(learned.metric_)[2:].max()
        left = 1 - learned.score(test, truth[:, 0])
        assert left < 0.65 * (1 - plain.score(test, truth[:, 0]))  # of the variance of the target
        assert [step.iteration for step in learned.path_] == list(range(len(learned.path_)))
        best = min(learned.path_, key=lambda step: step.held_out_error)
        assert (best.iteration, best.bandwidth, best.ridge) == (
            learned.iterations_,
            learned.bandwidth_,
            learned.alpha_,
        )

    def test_noise_keeps_the_plain_metric(self) -> None:
        """Leave-one-out in a learned metric falls on noise; what was never seen does not, and decides."""
        random = np.random.default_rng(0)
        fitted = RecursiveFeatureMachine().fit(random.normal(size=(150, 15)), random.normal(size=150))
        assert fitted.path_[1].leave_one_out_error < fitted.path_[0].leave_one_out_error
        assert fitted.iterations_ == 0
        assert np.array_equal(fitted.metric_, np.eye(15))

    def test_the_chosen_fit_is_the_one_at_its_settings(self) -> None:
        x, y = data(n=60, d=3)
        chosen = RecursiveFeatureMachine(bandwidth=2.0, alpha=0.01).fit(x, y)
        same = RecursiveFeatureMachine(bandwidth=2.0, alpha=0.01, iterations=chosen.iterations_).fit(x, y)
        np.testing.assert_allclose(chosen.predict(x), same.predict(x), atol=1e-12)
        assert math.isnan(same.path_[0].leave_one_out_error)

    def test_many_points_choose_on_a_sample(self) -> None:
        x, y = data(n=120, d=3)
        fitted = RecursiveFeatureMachine(rows=60).fit(x, y)
        again = RecursiveFeatureMachine(rows=60).fit(x, y)
        assert fitted.coef_.shape == (1, 120)
        assert np.array_equal(fitted.coef_, again.coef_)

    def test_the_descent_ends_at_a_place_better_than_its_neighbours(self) -> None:
        errors = np.random.default_rng(0).random((6, 7))
        errors[2, 3] = np.inf

        def fit(place: tuple[int, int]) -> Regression | None:
            if np.isinf(errors[place]):
                return None
            residual = torch.tensor([[math.sqrt(errors[place])]], dtype=torch.float64)
            return Regression(Radial("laplace", 1.0), 1.0, residual, residual[0], residual)

        (i, j), found = climb(fit, (2, 3), errors.shape)
        assert found is not None
        assert found.error == pytest.approx(errors[i, j])
        assert errors[i, j] == errors[max(0, i - 1) : i + 2, j].min() == errors[i, max(0, j - 1) : j + 2].min()


def test_constant_targets_leave_the_metric_as_it_is() -> None:
    x, _ = data()
    with pytest.warns(NumericalWarning, match="gradients of the fit are zero"):
        fitted = RecursiveFeatureMachine().fit(x, np.full(40, 0.1))
    np.testing.assert_allclose(fitted.predict(x), 0.1, atol=1e-12)
    assert fitted.iterations_ == 0


def test_points_that_coincide_need_a_ridge() -> None:
    x, y = data()
    x[:] = x[0]
    with pytest.raises(NumericalError, match="not positive definite"):
        RecursiveFeatureMachine(bandwidth=1.0, alpha=0.0, iterations=1).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        assert np.isfinite(RecursiveFeatureMachine().fit(x, y).predict(x)).all()


def test_canary_the_outer_product_of_other_coefficients_differs() -> None:
    x, y = (torch.from_numpy(a) for a in data(n=10))
    kernel = Radial("laplace", 2.0)
    one, other = (gradient_outer_product(kernel, x, c, tile=4) for c in (y, y.flip(0)))
    assert not torch.allclose(one, other)

"""Ridge with its strength by leave-one-out: against real refits in 60 digits, any scale, the edges of the grid, samples."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import FactoredGram, as_gram
from ntkscope.surrogates import KernelRidge, KernelRidgeLOO
from ntkscope.surrogates.ridge_loo import _centred_diagonal
from ntkscope.surrogates.solvers.ridge_path import ridge_path

N = 9


def refits(K: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """`y_i - f^{-i}(x_i)` by n fits without a point, each with its own intercept, in 60 digits."""
    found = np.zeros_like(y)
    with mpmath.workdps(60):
        for i in range(len(y)):
            rest = [j for j in range(len(y)) if j != i]
            rows = [[K[a, b] + (alpha if a == b else 0) for b in rest] + [1] for a in rest]
            system = mpmath.matrix([*rows, [1] * len(rest) + [0]])
            for k in range(y.shape[1]):
                *coef, intercept = mpmath.lu_solve(system, mpmath.matrix([*(y[j, k] for j in rest), 0]))
                predicted = intercept + mpmath.fsum(K[i, j] * c for j, c in zip(rest, coef))
                found[i, k] = float(y[i, k] - predicted)
    return found


def kernel(kind: str) -> np.ndarray:
    random = np.random.default_rng(3)
    x = random.normal(size=(N, {"full": N, "bad": N, "wide": 40}.get(kind, 3)))
    if kind == "bad":
        x *= 10.0 ** -np.arange(N)  # eigenvalues over sixteen decades
    if kind == "twice":
        x[4:8] = x[:4]
    if kind == "centred":
        x -= x.mean(0)  # the constant is in its null space
    if kind == "raised":
        return x @ x.T + 10
    return np.zeros((N, N)) if kind == "zeros" else x @ x.T


def unit(K: np.ndarray) -> float:
    """The mean diagonal of the centred kernel."""
    return float(np.trace(K) / N - K.mean()) or 1.0


@pytest.mark.parametrize("kind", ["full", "singular", "bad", "twice", "wide", "zeros", "centred", "raised"])
@pytest.mark.parametrize("strength", [1e-6, 1e-2, 10.0])
def test_residuals_are_those_of_real_refits(kind: str, strength: float) -> None:
    K, y = kernel(kind), np.random.default_rng(0).normal(size=(N, 2)) + 5
    alpha = strength * unit(K)
    path = ridge_path(as_gram(K), torch.from_numpy(y), torch.tensor([alpha], dtype=torch.float64))
    expected = refits(K, y, alpha)
    np.testing.assert_allclose(path.residuals(0), expected, rtol=0, atol=1e-8 * np.abs(expected).max())
    assert float(path.errors[0]) == pytest.approx((expected**2).mean(), rel=1e-7)


@pytest.mark.parametrize("kind", ["full", "singular", "twice"])
def test_the_strength_has_the_smallest_error_of_real_refits(kind: str) -> None:
    K, y = kernel(kind), np.random.default_rng(1).normal(size=(N, 2))
    grid = (1e-4, 1e-2, 1.0, 100.0)
    fitted = KernelRidgeLOO(grid).fit(K, y)
    errors = {a: (refits(K, y, a * unit(K)) ** 2).mean() for a in grid}
    assert fitted.alpha_ == pytest.approx(min(errors, key=lambda a: errors[a]) * unit(K))
    np.testing.assert_allclose(list(fitted.loo_errors_.values()), list(errors.values()), rtol=1e-7)
    np.testing.assert_allclose(y - fitted.leave_one_out(K), refits(K, y, fitted.alpha_), rtol=0, atol=1e-8)
    ridge = KernelRidge(fitted.alpha_).fit(K, y - fitted.intercept_)  # the best fit at that intercept
    np.testing.assert_allclose(fitted.logits(K), ridge.logits(K) + fitted.intercept_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(fitted.coef_.sum(1), 0, atol=1e-9)


@pytest.mark.parametrize(
    ("scale", "raised", "shift"), [(1e-12, 0, 0), (3.0, 0, 0), (1e12, 0, 0), (1.0, 50, 0), (1.0, 0, 1e3)]
)
def test_neither_scale_nor_a_constant_of_the_kernel_matters_and_targets_may_shift(
    scale: float, raised: float, shift: float
) -> None:
    K, y = kernel("full"), np.random.default_rng(2).normal(size=N)
    moved = scale * K + raised
    one, other = KernelRidgeLOO().fit(K, y), KernelRidgeLOO().fit(moved, y + shift)
    assert other.alpha_ == pytest.approx(scale * one.alpha_, rel=1e-12)
    np.testing.assert_allclose(other.predict(moved), one.predict(K) + shift, rtol=0, atol=1e-8)


def test_an_end_of_the_grid_is_said() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 5))
    assert KernelRidgeLOO().fit(x @ x.T, x[:, 0]).edge_ == "smallest"  # linear in the kernel's features, no noise
    noise = random.normal(size=40)
    assert KernelRidgeLOO((1e-6, 1e-4, 1e-2)).fit(x @ x.T, noise).edge_ == "largest"
    fitted = KernelRidgeLOO().fit(x @ x.T, x[:, 0] + 0.3 * random.normal(size=40))
    assert fitted.edge_ == ""
    assert 0.5 < fitted.loo_r2_ < 1


def test_nothing_to_fit() -> None:
    """Constant targets, a kernel of zeros, two points: the mean of the targets, and no end of the grid is blamed."""
    K, y = kernel("full"), np.random.default_rng(2).normal(size=N)
    constant = KernelRidgeLOO().fit(K, np.full((N, 2), 7.0))
    assert (constant.edge_, constant.loo_r2_) == ("", 1.0)
    np.testing.assert_array_equal(constant.logits(K), np.full((N, 2), 7.0))
    flat = KernelRidgeLOO().fit(np.full((N, N), 3.0), y)
    np.testing.assert_allclose(flat.predict(np.full((N, N), 3.0)), np.full(N, y.mean()), rtol=1e-9)
    zeros = KernelRidgeLOO().fit(np.zeros((N, N)), y)
    np.testing.assert_allclose(zeros.predict(np.zeros((N, N))), np.full(N, y.mean()), rtol=1e-12)
    assert zeros.edge_ == ""
    two = KernelRidgeLOO().fit(K[:2, :2], y[:2])
    assert np.isfinite(two.predict(K[:2, :2])).all()
    with pytest.raises(UsageError, match="n_samples = 1; expected at least 2"):
        KernelRidgeLOO().fit(K[:1, :1], y[:1])


def test_single_precision_does_not_choose_a_strength_below_its_rounding() -> None:
    """Eigenvalues that rounding made negative: strengths they outweigh are not used, and the answer is nearly the exact one."""
    random = np.random.default_rng(5)
    x = random.normal(size=(200, 10))
    y = x @ random.normal(size=10)
    K = x @ x.T
    narrow = K.astype(np.float32)
    fitted = KernelRidgeLOO().fit(narrow, y)
    smallest = np.linalg.eigvalsh(narrow.astype(np.float64))[0]
    assert smallest < 0
    assert fitted.alpha_ >= -2 * smallest
    np.testing.assert_allclose(fitted.predict(narrow), y, atol=1e-4)


def test_matrices_that_are_no_kernels_are_refused() -> None:
    with pytest.raises(NumericalError, match="positive semidefinite up to rounding"):
        KernelRidgeLOO().fit(-1e3 * kernel("full"), np.arange(float(N)))


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_sample_chooses_the_strength_and_all_rows_are_fitted(outputs: int) -> None:
    random = np.random.default_rng(7)
    x = random.normal(size=(300, 6))
    y = np.tanh(x @ random.normal(size=(6, outputs))) + 0.1 * random.normal(size=(300, outputs))
    features = torch.from_numpy(np.concatenate([x, np.tanh(x)], axis=1))
    whole, part = (KernelRidgeLOO(rows=rows).fit(FactoredGram(features), y) for rows in (300, 150))
    assert (whole.rows_, part.rows_) == (300, 150)
    assert part.coef_.shape == (outputs, 300)
    expected = KernelRidgeLOO((part.alpha_ / _centred_diagonal(FactoredGram(features)),)).fit(FactoredGram(features), y)
    np.testing.assert_allclose(part.coef_, expected.coef_, rtol=0, atol=1e-9 * np.abs(expected.coef_).max())
    np.testing.assert_allclose(part.intercept_, expected.intercept_, rtol=0, atol=1e-9)
    assert abs(np.log10(part.alpha_ / whole.alpha_)) < 1.5
    again = KernelRidgeLOO(rows=150).fit(FactoredGram(features), y)
    assert again.alpha_ == part.alpha_

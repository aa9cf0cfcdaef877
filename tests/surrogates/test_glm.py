"""The kernel GLM against scikit-learn's logistic regression on kernel columns, and against refits without a point."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier

import ntkscope as ns
from contracts.surrogate import blobs, radial
from ntkscope.core import UsageError
from ntkscope.core.random import derive_seed
from ntkscope.linalg import OperatorGram
from ntkscope.surrogates import KernelGLM
from ntkscope.surrogates.solvers.leading import leading_pairs
from oracles.optimum import glm_minimum, glm_objective


def noisy(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A kernel and labels that cannot be told apart perfectly."""
    x, y = blobs(n, classes, seed, noise=2.0)
    return radial(x, x), y


def objective(glm: KernelGLM, K: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy plus α/2 ‖W‖², written once more."""
    logits = K @ glm.coef_.T + glm.intercept_
    losses = [np.log(np.exp(row - row.max()).sum()) + row.max() - row[label] for row, label in zip(logits, y)]
    return float(np.mean(losses) + glm.alpha_ / 2 * (glm.coef_**2).sum())


@pytest.mark.parametrize("n", [90, 450])  # by eigendecomposition, by randomised subspace
def test_the_optimum_is_that_of_logistic_regression_on_the_columns(n: int) -> None:
    K, y = noisy(n, 3)
    alpha = 1e-3
    glm = KernelGLM(alpha=alpha, rank=64, tol=1e-8).fit(K, y)
    peer = LogisticRegression(C=1 / (n * alpha), solver="newton-cg", tol=1e-10, max_iter=10_000).fit(K, y)
    np.testing.assert_allclose(glm.predict_proba(K), peer.predict_proba(K), atol=1e-6)  # both stop near it
    np.testing.assert_allclose(glm.coef_, peer.coef_, atol=1e-4 * np.abs(peer.coef_).max())
    assert glm.gradient_norm_ <= 1e-8
    assert glm.loss_ == pytest.approx(objective(glm, K, y), rel=1e-10)


def test_one_vs_rest_is_a_logistic_regression_for_each_class() -> None:
    K, y = noisy(90, 3)
    glm = KernelGLM(alpha=1e-3, multi_class="ovr", tol=1e-9).fit(K, y)
    for c in range(3):
        peer = LogisticRegression(C=1 / (90 * 1e-3), solver="newton-cg", tol=1e-10, max_iter=10_000).fit(K, y == c)
        np.testing.assert_allclose(glm.coef_[c], peer.coef_[0], atol=1e-4 * np.abs(peer.coef_).max())


def test_two_classes() -> None:
    """Softmax has two rows and half the penalty of one row for the difference; one-vs-rest is the usual binary one."""
    K, y = noisy(80, 2)
    peer = LogisticRegression(C=1 / (80 * 1e-3), solver="newton-cg", tol=1e-10, max_iter=10_000).fit(K, y)
    for glm in (KernelGLM(alpha=2e-3, tol=1e-9), KernelGLM(alpha=1e-3, multi_class="ovr", tol=1e-9)):
        glm.fit(K, y)
        assert glm.coef_.shape == (2, 80)
        np.testing.assert_allclose(glm.decision_function(K), peer.decision_function(K), atol=1e-5)
        np.testing.assert_allclose(glm.predict_proba(K), peer.predict_proba(K), atol=1e-6)


def test_gradient_at_the_optimum_vanishes_by_autograd() -> None:
    K, y = noisy(60, 4)
    glm = KernelGLM(alpha=1e-3).fit(K, y)
    weights, bias = (torch.tensor(v, requires_grad=True) for v in (glm.coef_, glm.intercept_))

    def gradient_norm(w: torch.Tensor, b: torch.Tensor) -> float:
        loss = torch.nn.functional.cross_entropy(torch.from_numpy(K) @ w.T + b, torch.from_numpy(y))
        parts = torch.autograd.grad(loss + 1e-3 / 2 * w.square().sum(), (w, b))
        return float(torch.cat([p.flatten() for p in parts]).norm())

    at_zero = gradient_norm(torch.zeros_like(weights).requires_grad_(), torch.zeros_like(bias).requires_grad_())
    assert gradient_norm(weights, bias) <= 1e-6 * at_zero
    assert glm.gradient_norm_ == pytest.approx(gradient_norm(weights, bias) / at_zero, abs=1e-9)


def test_without_intercept() -> None:
    K, y = noisy(60, 3)
    glm = KernelGLM(alpha=1e-3, fit_intercept=False, tol=1e-9).fit(K, y)
    peer = LogisticRegression(C=1 / (60 * 1e-3), solver="newton-cg", tol=1e-10, max_iter=10_000, fit_intercept=False)
    np.testing.assert_array_equal(glm.intercept_, 0)
    np.testing.assert_allclose(glm.predict_proba(K), peer.fit(K, y).predict_proba(K), atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_kernels_of_any_size_and_weak_ridges(scale: float) -> None:
    K, y = noisy(450, 3)
    for alpha in (1e-5, 1e-2):
        glm = KernelGLM(alpha=alpha * scale**2).fit(K * scale, y)
        assert glm.converged_
        assert glm.gradient_norm_ <= 1e-6


def test_single_precision_reaches_the_optimum_of_the_kernel_it_got() -> None:
    K, y = noisy(450, 3)
    narrow = K.astype(np.float32)
    glm, wide = KernelGLM(rank=64, tol=1e-8).fit(narrow, y), KernelGLM(rank=64, tol=1e-8).fit(narrow.astype(float), y)
    assert glm.gradient_norm_ <= 1e-8
    np.testing.assert_allclose(glm.logits(narrow), wide.logits(narrow), atol=1e-4)


def test_nothing_but_products_is_asked_of_a_kernel() -> None:
    """An operator that counts: tens of products with one column a class, and none with the identity."""
    K, y = noisy(450, 3)
    matrix, widths = torch.from_numpy(K), []

    def multiply(v: torch.Tensor) -> torch.Tensor:
        widths.append(v.shape[1])
        return matrix @ v

    glm = KernelGLM(rank=64).fit(OperatorGram(K.shape, multiply, dtype=torch.float64, symmetric=True), y)
    np.testing.assert_allclose(glm.logits(K), KernelGLM(rank=64).fit(K, y).logits(K), atol=1e-9)
    assert len(widths) < 150
    assert max(widths) == 64 + 16


def test_leading_pairs_are_eigenpairs() -> None:
    K, _ = noisy(450, 3)
    leading = leading_pairs(ns.linalg.as_gram(K), 20)
    expected = np.linalg.eigvalsh(K)[::-1][:20]
    np.testing.assert_allclose(leading.values.numpy()[:5], expected[:5], rtol=1e-3)  # two sweeps; ample for a guide
    np.testing.assert_allclose((leading.vectors.T @ leading.vectors).numpy(), np.eye(20), atol=1e-12)


def test_sgd_is_scikit_learns() -> None:
    K, y = noisy(90, 3)
    with pytest.warns(ConvergenceWarning, match="stochastic steps"):
        glm = KernelGLM(alpha=1e-4, solver="sgd").fit(K, y)
    with pytest.warns(ConvergenceWarning, match="stochastic steps"):
        other = KernelGLM(solver="sgd", seed=1).fit(K, y)
    seed = derive_seed(0, "kernel-glm-sgd") % 2**32
    peer = SGDClassifier(loss="log_loss", alpha=1e-4, random_state=seed).fit(K, y)
    np.testing.assert_allclose(glm.logits(K), peer.decision_function(K), rtol=1e-10)
    assert glm.coef_.shape == (3, 90)
    assert other.logits(K).tolist() != glm.logits(K).tolist()
    with pytest.raises(UsageError, match="newton-cg"):
        glm.leave_one_out(K)


@pytest.mark.parametrize(("multi_class", "classes"), [("multinomial", 3), ("multinomial", 2), ("ovr", 3), ("ovr", 2)])
@pytest.mark.guard
def test_leave_one_out_is_close_to_refits(multi_class: str, classes: int) -> None:
    n, alpha = 48, 1e-3
    K, y = noisy(n, classes)
    glm = KernelGLM(alpha, multi_class=multi_class, tol=1e-9).fit(K, y)
    found, fitted = glm.leave_one_out(K), glm.logits(K)
    assert found.shape == (n, classes)
    refits = []
    for i in range(n):
        rest = np.arange(n) != i
        other = KernelGLM(alpha * n / (n - 1), multi_class=multi_class, tol=1e-8).fit(K[np.ix_(rest, rest)], y[rest])
        refits.append(other.logits(K[[i]][:, rest])[0])
    centred = [v - v.mean(1, keepdims=True) for v in (found, np.array(refits), fitted)]
    error, moved = (np.sqrt(np.square(a - centred[1]).mean()) for a in (centred[0], centred[2]))
    assert error < 0.1 * moved  # one Newton step of a smooth problem; what it corrects is ten times its error
    assert np.median(np.abs(centred[0] - centred[1])) < 0.03 * np.abs(centred[1]).max()


def test_stopping_early_is_said() -> None:
    K, y = noisy(450, 3)
    with pytest.warns(ConvergenceWarning, match="relative gradient norm"):
        glm = KernelGLM(alpha=1e-6, max_iter=1, rank=1).fit(K, y)
    assert not glm.converged_


def test_a_real_tangent_kernel() -> None:
    split = ns.data.load("digits")
    model = ns.models.build("small_cnn", image_size=8, classes=10).eval()
    x, y = split.train.x[:300], split.train.y[:300]
    K, K_test = ns.kernel("trntk", model, x), ns.kernel("trntk", model, split.test.x[:100], x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        glm = KernelGLM().fit(K, y)
    assert glm.gradient_norm_ <= 1e-6
    assert glm.score(K_test, split.test.y[:100].numpy()) > 0.8


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1e5, 1e8])
def test_kernels_of_large_values_reach_the_optimum_or_say_so(scale: float, dtype: torch.dtype) -> None:
    """Tangent kernels before normalisation are this large, and of low rank: the ridge is below the curvature's rounding."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(150, 20)), random.integers(0, 3, 150)
    K = torch.from_numpy(scale * x @ x.T).to(dtype)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        glm = KernelGLM().fit(K, y)
    assert glm.converged_ == (not any(isinstance(one.message, ConvergenceWarning) for one in said))
    values = K.double().numpy()
    least = glm_minimum(values, y, glm.alpha)
    reached = glm_objective(values, y, glm.coef_, glm.intercept_, glm.alpha)
    assert reached <= least * (1 + (1e-6 if glm.converged_ else 1e-2))
    assert np.isfinite(glm.leave_one_out(K)).all()

"""Ridge, minimum norm, logistic, support vectors and neighbours against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge as PeerRidge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC

from contracts.surrogate import blobs, problem, radial
from ntkscope.core import UsageError
from ntkscope.linalg import NumericalWarning
from ntkscope.surrogates import (
    KernelLogistic,
    KernelNeighbors,
    KernelRidge,
    KernelRidgeClassifier,
    KernelSVM,
    MinimumNorm,
)

N = 40


def setting(classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = blobs(N, classes, seed, noise=1.5)
    return radial(x, x, shared=0.2), y


class TestRidge:
    @pytest.mark.parametrize("solver", ["cholesky", "cg"])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_against_scikit_learn(self, solver: str, weighted: bool) -> None:
        K, y = setting()
        weights = np.random.default_rng(0).uniform(0.1, 3, N) if weighted else None
        targets = np.stack([y, np.cos(y)], 1).astype(float)
        found = KernelRidge(0.1, solver=solver, tol=1e-11).fit(K, targets, sample_weight=weights)
        peer = PeerRidge(alpha=0.1, kernel="precomputed").fit(K, targets, sample_weight=weights)
        np.testing.assert_allclose(found.predict(K), peer.predict(K), atol=1e-8)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_leave_one_out_is_exact(self, weighted: bool) -> None:
        K, y = setting()
        weights = np.random.default_rng(0).integers(0, 3, N).astype(float) if weighted else np.ones(N)
        found = KernelRidgeClassifier(0.1).fit(K, y, sample_weight=weights).leave_one_out(K)
        for i in range(N):
            rest = np.arange(N) != i
            refit = KernelRidgeClassifier(0.1).fit(K[np.ix_(rest, rest)], y[rest], sample_weight=weights[rest])
            np.testing.assert_allclose(found[i], refit.logits(K[[i]][:, rest])[0], atol=1e-9)

    def test_a_singular_kernel_without_ridge_says_its_jitter(self) -> None:
        K = np.ones((4, 4))
        with pytest.warns(NumericalWarning, match="jitter"):
            found = KernelRidge(alpha=0.0).fit(K, [1.0, 1.0, 1.0, 1.0])
        assert found.jitter_ > 0
        np.testing.assert_allclose(found.predict(K), 1.0, atol=1e-3)

    def test_class_names_are_no_targets(self) -> None:
        with pytest.raises(UsageError, match="KernelRidgeClassifier"):
            KernelRidge().fit(np.eye(2), ["a", "b"])


def test_minimum_norm_is_ridge_in_the_limit() -> None:
    K, y = setting()
    limit = KernelRidge(1e-9).fit(K, y.astype(float))
    np.testing.assert_allclose(MinimumNorm().fit(K, y.astype(float)).predict(K[:5]), limit.predict(K[:5]), atol=1e-5)


class TestLogistic:
    @pytest.mark.parametrize(
        ("multi_class", "classes"), [("multinomial", 3), ("multinomial", 2), ("ovr", 3), ("ovr", 2)]
    )
    def test_gradient_at_the_optimum_vanishes_by_autograd(self, multi_class: str, classes: int) -> None:
        K, y = setting(classes)
        alpha = 1e-2
        fitted = KernelLogistic(alpha, multi_class=multi_class).fit(K, y)
        kernel, labels = torch.from_numpy(K), torch.from_numpy(y)
        binary = multi_class == "ovr" and classes == 2
        coef = fitted.coef_[1:] - fitted.coef_[:1] if binary else fitted.coef_
        bias = fitted.intercept_[1:] - fitted.intercept_[:1] if binary else fitted.intercept_
        c, b = torch.tensor(coef.T, requires_grad=True), torch.tensor(bias, requires_grad=True)
        f = kernel @ c + b
        if multi_class == "multinomial":
            loss = torch.nn.functional.cross_entropy(f, labels)
        else:
            hot = torch.nn.functional.one_hot(labels).double()
            hot = hot[:, 1:] if binary else hot
            loss = torch.nn.functional.binary_cross_entropy_with_logits(f, hot, reduction="none").sum(1).mean()
        loss = loss + alpha / 2 * (c * (kernel @ c)).sum()
        for gradient in torch.autograd.grad(loss, (c, b)):
            assert float(gradient.abs().max()) < 1e-8
        assert fitted.loss_ == pytest.approx(loss.item(), rel=1e-10)
        assert fitted.n_iter_ < 15  # Newton's method

    def test_weights_are_repetitions(self) -> None:
        K, y = setting()
        weights = np.random.default_rng(0).integers(0, 3, N)
        repeated = np.repeat(np.arange(N), weights)
        found = KernelLogistic(1e-2, tol=1e-10).fit(K, y, sample_weight=weights)
        expected = KernelLogistic(1e-2, tol=1e-10).fit(K[np.ix_(repeated, repeated)], y[repeated])
        np.testing.assert_allclose(found.logits(K), expected.logits(K[:, repeated]), atol=1e-6)

    def test_an_indefinite_kernel_says_its_jitter(self) -> None:
        K, y = setting()
        values, vectors = np.linalg.eigh(K)
        values[0] = -5.0
        with pytest.warns(NumericalWarning, match="jitter"):
            fitted = KernelLogistic(1e-3).fit((vectors * values) @ vectors.T, y)
        assert fitted.jitter_ == pytest.approx(5.0, rel=1e-3)
        assert np.isfinite(fitted.logits(K)).all()

    def test_weights_that_leave_one_class_are_refused(self) -> None:
        K, y = setting()
        with pytest.raises(UsageError, match="one class"):
            KernelLogistic().fit(K, y, sample_weight=(y == 0).astype(float))


def test_support_vectors_are_scikit_learns() -> None:
    K, y = setting()
    found = KernelSVM(C=2.0).fit(K, y)
    peer = OneVsRestClassifier(SVC(C=2.0, kernel="precomputed", tol=1e-10)).fit(K, y)
    near = 5e-3  # an objective within 1e-6 of its minimum leaves scores within about its root
    np.testing.assert_allclose(found.logits(K), peer.decision_function(K), atol=near)
    exact = KernelSVM(C=2.0, tol=1e-7).fit(K, y)
    np.testing.assert_allclose(exact.logits(K), peer.decision_function(K), atol=1e-4)
    two, other = KernelSVM(tol=1e-7).fit(K, y == 0), SVC(kernel="precomputed", tol=1e-10).fit(K, y == 0)
    np.testing.assert_allclose(two.decision_function(K), other.decision_function(K), atol=1e-4)


class TestNeighbors:
    def test_against_a_loop(self) -> None:
        K, y, K_test = problem()
        fitted = KernelNeighbors(k=5).fit(K, y)
        for row, indices, probabilities in zip(K_test, fitted.kneighbors(K_test), fitted.predict_proba(K_test)):
            expected = sorted(range(len(y)), key=lambda i: (-row[i], i))[:5]
            assert indices.tolist() == expected
            counts = np.bincount(y[expected], minlength=3)
            np.testing.assert_allclose(probabilities, (counts + 1 / 3) / 6)

    def test_ties_go_to_the_nearest(self) -> None:
        fitted = KernelNeighbors(k=2).fit(np.eye(2), [0, 1])
        assert fitted.predict(np.array([[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]])).tolist() == [1, 0, 0]

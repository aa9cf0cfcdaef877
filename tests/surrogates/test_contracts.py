"""Every surrogate held to the contract."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from contracts.surrogate import ClassifierContract, RegressorContract, problem
from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import FactoredGram
from ntkscope.surrogates import (
    ConjugateLeastSquares,
    KernelGLM,
    KernelLogistic,
    KernelNeighbors,
    KernelRidge,
    KernelRidgeClassifier,
    KernelRidgeLOO,
    KernelSVM,
    KernelSVR,
    MinimumNorm,
    MinimumNormClassifier,
    NearestClassCentre,
)

RAW = {"check_decision_proba_consistency": "hands over inputs (80, 2) where a kernel is due, whatever the tags say"}
WEIGHTS = {"check_classifiers_one_label_sample_weights": "its kernel is a random matrix, which is not symmetric"}


class TestKernelGLM(ClassifierContract):
    estimator = KernelGLM
    not_for_kernels = RAW
    tolerance = 1e-4  # of the optimum, reached to tol


class TestKernelLogistic(ClassifierContract):
    estimator = KernelLogistic
    not_for_kernels = RAW | WEIGHTS

    @pytest.mark.nightly
    def test_scikit_learns_own_checks(self) -> None:
        super().test_scikit_learns_own_checks()


class TestKernelSVM(ClassifierContract):
    estimator = KernelSVM
    not_for_kernels = RAW | WEIGHTS


class TestKernelSVR(RegressorContract):
    estimator = KernelSVR
    tolerance = 1e-4  # of the optimum, reached to tol


class TestKernelNeighbors(ClassifierContract):
    estimator = KernelNeighbors
    not_for_kernels = RAW


class TestNearestClassCentre(ClassifierContract):
    estimator = NearestClassCentre
    not_for_kernels = RAW
    searched: ClassVar[dict[str, Any]] = {"variance": 2.0}


class TestKernelRidgeClassifier(ClassifierContract):
    estimator = KernelRidgeClassifier
    not_for_kernels = RAW | WEIGHTS


class TestMinimumNormClassifier(ClassifierContract):
    estimator = MinimumNormClassifier
    not_for_kernels = RAW | WEIGHTS
    accuracy = 0.6  # interpolates the noise too


class TestKernelRidge(RegressorContract):
    estimator = KernelRidge


class TestKernelRidgeLOO(RegressorContract):
    estimator = KernelRidgeLOO
    searched: ClassVar[dict[str, Any]] = {"alphas": (1e-4, 1e-2)}

    def test_several_outputs_are_each_its_own_regression(self) -> None:
        """They share one strength, so it is fixed here."""
        make, self.make = self.make, lambda **options: make(alphas=(1e-3,), **options)  # type: ignore[method-assign]
        super().test_several_outputs_are_each_its_own_regression()


class TestMinimumNorm(RegressorContract):
    estimator = MinimumNorm


class TestConjugateLeastSquares(RegressorContract):
    """Its input has features in the columns; a kernel counts by the features that it holds."""

    estimator = ConjugateLeastSquares
    tolerance = 1e-5  # the square root of a kernel, taken as features, has lost digits

    @pytest.mark.parametrize("kind", ["tensor", "factored", "list"])
    def test_every_kind_of_kernel_gives_one_answer(self, kind: str) -> None:
        super().test_every_kind_of_kernel_gives_one_answer(kind)  # interpolation on any square root of K is that on K

    @pytest.mark.parametrize("kind", ["dense", "operator"])
    def test_refuses_kernels_without_features(self, kind: str) -> None:
        with pytest.raises(UsageError, match="does not hold its features; expected features"):
            super().test_every_kind_of_kernel_gives_one_answer(kind)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_refuses_kernels_that_are_not_finite(self, value: float) -> None:
        K, y, _ = problem()
        K[3, 4] = value
        for given in (np.asarray, torch.from_numpy, lambda bad: FactoredGram(torch.from_numpy(bad))):
            with pytest.raises((ValueError, NumericalError), match="NaN"):  # infinite features make no Gram at all
                self.make().fit(given(K), self.targets(y))

    def test_refuses_kernels_that_are_not_square_and_symmetric(self) -> None:
        left = torch.from_numpy(problem()[0])
        with pytest.raises(UsageError, match=r"got the cross kernel .* for training; expected the square"):
            self.make().fit(FactoredGram(left[:5], left), [0.0] * 5)

    def test_refuses_test_kernels_with_other_columns(self) -> None:
        K, y, K_test = problem()
        fitted = self.quiet_fit(K, self.targets(y))
        with pytest.raises(UsageError, match=r"fitted on 48 features; expected \(n_test, 48\)"):
            fitted.predict(torch.from_numpy(K_test[:, :-1]))
        left = torch.from_numpy(K)
        fitted = self.quiet_fit(FactoredGram(left), self.targets(y))
        with pytest.raises(UsageError, match="fitted on 48 training points; expected"):
            fitted.predict(FactoredGram(left[:5], left[:7]))

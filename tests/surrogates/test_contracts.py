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
    not_for_kernels = RAW
    tolerance = 1e-4  # of the optimum, reached to tol

    def make(self, **options: Any) -> KernelGLM:
        return KernelGLM(**options)


class TestKernelLogistic(ClassifierContract):
    not_for_kernels = RAW | WEIGHTS

    def make(self, **options: Any) -> KernelLogistic:
        return KernelLogistic(**options)

    @pytest.mark.nightly
    def test_scikit_learns_own_checks(self) -> None:
        super().test_scikit_learns_own_checks()


class TestKernelSVM(ClassifierContract):
    not_for_kernels = RAW | WEIGHTS

    def make(self, **options: Any) -> KernelSVM:
        return KernelSVM(**options)


class TestKernelSVR(RegressorContract):
    tolerance = 1e-4  # of the optimum, reached to tol

    def make(self, **options: Any) -> KernelSVR:
        return KernelSVR(**options)


class TestKernelNeighbors(ClassifierContract):
    not_for_kernels = RAW

    def make(self, **options: Any) -> KernelNeighbors:
        return KernelNeighbors(**options)


class TestNearestClassCentre(ClassifierContract):
    not_for_kernels = RAW
    searched: ClassVar[dict[str, Any]] = {"variance": 2.0}

    def make(self, **options: Any) -> NearestClassCentre:
        return NearestClassCentre(**options)


class TestKernelRidgeClassifier(ClassifierContract):
    not_for_kernels = RAW | WEIGHTS

    def make(self, **options: Any) -> KernelRidgeClassifier:
        return KernelRidgeClassifier(**options)


class TestMinimumNormClassifier(ClassifierContract):
    not_for_kernels = RAW | WEIGHTS
    accuracy = 0.6  # interpolates the noise too

    def make(self, **options: Any) -> MinimumNormClassifier:
        return MinimumNormClassifier(**options)


class TestKernelRidge(RegressorContract):
    def make(self, **options: Any) -> KernelRidge:
        return KernelRidge(**options)


class TestKernelRidgeLOO(RegressorContract):
    searched: ClassVar[dict[str, Any]] = {"alphas": (1e-4, 1e-2)}

    def make(self, **options: Any) -> KernelRidgeLOO:
        return KernelRidgeLOO(**options)

    def test_several_outputs_are_each_its_own_regression(self) -> None:
        """They share one strength, so it is fixed here."""
        make, self.make = self.make, lambda **options: make(alphas=(1e-3,), **options)  # type: ignore[method-assign]
        super().test_several_outputs_are_each_its_own_regression()


class TestMinimumNorm(RegressorContract):
    def make(self, **options: Any) -> MinimumNorm:
        return MinimumNorm(**options)


class TestConjugateLeastSquares(RegressorContract):
    """Its input has features in the columns; a kernel counts by the features that it holds."""

    tolerance = 1e-5  # the square root of a kernel, taken as features, has lost digits

    def make(self, **options: Any) -> ConjugateLeastSquares:
        return ConjugateLeastSquares(**options)

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

"""Every surrogate held to the contract."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from contracts.surrogate import ClassifierContract, RegressorContract
from ntkscope.surrogates import (
    KernelGLM,
    KernelLogistic,
    KernelNeighbors,
    KernelRidge,
    KernelRidgeClassifier,
    KernelRidgeLOO,
    KernelSVM,
    MinimumNorm,
    MinimumNormClassifier,
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


class TestKernelNeighbors(ClassifierContract):
    not_for_kernels = RAW

    def make(self, **options: Any) -> KernelNeighbors:
        return KernelNeighbors(**options)


class TestKernelRidgeClassifier(ClassifierContract):
    not_for_kernels = RAW | WEIGHTS

    def make(self, **options: Any) -> KernelRidgeClassifier:
        return KernelRidgeClassifier(**options)


class TestMinimumNormClassifier(ClassifierContract):
    not_for_kernels = RAW
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

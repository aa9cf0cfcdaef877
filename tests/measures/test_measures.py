"""Every registered measure keeps the contract."""

from __future__ import annotations

import math

import numpy as np
import pytest

from contracts.measure import MeasureContract
from ntkscope.core import NumericalError, numpy_generator
from ntkscope.measures import MEASURES


def scores(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = numpy_generator(seed, "test", "scores")
    a = random.normal(size=30)
    return a, a + random.normal(size=30)


def logits(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = numpy_generator(seed, "test", "logits")
    a = random.normal(size=(30, 3))
    return a, a + random.normal(size=(30, 3))


def labels(seed: int) -> np.ndarray:
    return numpy_generator(seed, "test", "labels").integers(0, 3, 30)


def kernels(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = numpy_generator(seed, "test", "kernels")
    a, b = random.normal(size=(2, 30, 5))
    return a @ a.T, (a + b) @ (a + b).T


class Scores(MeasureContract):
    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return scores(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        a, _ = scores(0)
        return a, 2 * a + 1


class Ordered(Scores):
    def test_both_ends_of_its_range_are_reached(self) -> None:
        measure, (a, _) = MEASURES[self.name], scores(0)
        assert [measure(a, b) for b in (-a, a)] == pytest.approx([measure.low, measure.high], abs=1e-12)


class TestKendallTau(Ordered):
    name = "kendall-tau"


class TestPearson(Ordered):
    name = "pearson"


class TestSpearman(Ordered):
    name = "spearman"


class TestMonotoneR2(Scores):
    name = "monotone-r2"


class TestAccuracy(MeasureContract):
    name = "accuracy"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return logits(seed)[0], labels(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        return np.eye(3)[labels(0)], labels(0)

    def test_both_ends_of_its_range_are_reached(self) -> None:
        measure, y = MEASURES[self.name], labels(0)
        found = [measure(np.eye(3)[said], y) for said in ((y + 1) % 3, y)]
        assert found == [measure.low, measure.high]


class TestTad(MeasureContract):
    name = "tad"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return *logits(seed), labels(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        return logits(0)[0], logits(0)[0], labels(0)

    def test_both_ends_of_its_range_are_reached(self) -> None:
        measure, y = MEASURES[self.name], labels(0)
        right, wrong = np.eye(3)[y], np.eye(3)[(y + 1) % 3]
        assert [measure(wrong, right, y), measure(right, wrong, y)] == [measure.low, measure.high]


class Logits(MeasureContract):
    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return logits(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        return logits(0)[0], logits(0)[0] + 1


class Certain(Logits):
    def test_both_ends_of_its_range_are_reached(self) -> None:
        """By networks that are certain, of the same classes and of others."""
        measure, a = MEASURES[self.name], 1000 * np.eye(3)
        found = sorted(measure(a, b) for b in (a, np.roll(a, 1, 0)))
        assert found == [measure.low, measure.high]


class TestAgreement(Certain):
    name = "agreement"


class TestTotalVariation(Certain):
    name = "total-variation"


class TestAgreementWrong(MeasureContract):
    name = "agreement-wrong"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return *logits(seed), labels(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        return logits(0)[0], logits(0)[0] + 1, labels(0)

    def test_is_agreement_on_the_networks_errors(self) -> None:
        surrogate, network, y = self.arguments(1)
        wrong = network.argmax(1) != y
        expected = MEASURES["agreement"](surrogate[wrong], network[wrong])
        assert MEASURES[self.name](surrogate, network, y) == pytest.approx(expected)
        with pytest.raises(NumericalError, match="every item right"):
            MEASURES[self.name](surrogate, network, network.argmax(1))


class TestR2Logits(Logits):
    name = "r2-logits"

    def test_does_not_see_what_the_softmax_does_not(self) -> None:
        surrogate, network = logits(1)
        shift = np.arange(30.0)[:, None]
        value = MEASURES[self.name](surrogate, network)
        assert MEASURES[self.name](surrogate + shift, network - shift) == pytest.approx(value, abs=1e-9)
        assert MEASURES[self.name](np.zeros_like(network) + network.mean(0), network) == pytest.approx(0, abs=1e-12)
        with pytest.raises(NumericalError, match="the same logits"):
            MEASURES[self.name](surrogate, np.ones_like(network))


class TestR2Outputs(MeasureContract):
    name = "r2-outputs"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return logits(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        return logits(0)[0], logits(0)[0]


class TestKernelTargetAlignment(MeasureContract):
    name = "kernel-target-alignment"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return kernels(seed)[0], labels(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        one_hot = np.eye(3)[labels(0)]
        return one_hot @ one_hot.T, labels(0)


class Kernels(MeasureContract):
    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return kernels(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        return kernels(0)[0], 2 * kernels(0)[0]


class TestCentredAlignment(Kernels):
    name = "centred-alignment"


class TestKernelDistance(Kernels):
    name = "kernel-distance"


class TestKernelVelocity(Kernels):
    name = "kernel-velocity"


class TestRelativeChange(Kernels):
    name = "relative-change"

    def perfect(self) -> tuple[np.ndarray, ...]:
        return kernels(0)[0], kernels(0)[0]

    def test_is_its_definition(self) -> None:
        a, b = kernels(1)
        H = np.eye(30) - 1 / 30
        for centred, (c, d) in ((False, (a, b)), (True, (H @ a @ H, H @ b @ H))):
            expected = np.linalg.norm(d - c) / np.linalg.norm(c)
            assert MEASURES[self.name](a, b, centred=centred) == pytest.approx(expected, abs=1e-11)


class TestLinearisationError(MeasureContract):
    name = "linearisation-error"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        return logits(seed)

    def perfect(self) -> tuple[np.ndarray, ...]:
        return logits(0)[0], logits(0)[0]

    def test_nothing_changed(self) -> None:
        assert math.isnan(MEASURES[self.name](np.zeros((3, 2)), np.ones((3, 2))))

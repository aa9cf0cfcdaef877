"""Alignment against the definitions, with the centring matrix written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkscope.core import NumericalError, UsageError, numpy_generator
from ntkscope.linalg import FactoredGram, OperatorGram
from ntkscope.measures.alignment import (
    centred_alignment,
    kernel_distance,
    kernel_target_alignment,
    kernel_velocity,
    power_in,
)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


@settings(max_examples=30)
@given(n=st.integers(3, 20), seed=st.integers(0, 1000), c=st.floats(0.01, 100))
def test_definitions_and_laws(n: int, seed: int, c: float) -> None:
    random = numpy_generator(seed, "test", "alignment")
    F, G = random.normal(size=(2, n, 4))
    K, L = F @ F.T, G @ G.T
    H = np.eye(n) - 1 / n
    y = random.permutation(np.arange(n) % 3)
    Y = np.eye(3)[y]
    assert kernel_target_alignment(K, y) == pytest.approx(cosine(K, Y @ Y.T), abs=1e-12)
    assert kernel_target_alignment(K, y, centred=True) == pytest.approx(cosine(H @ K @ H, H @ Y @ Y.T @ H), abs=1e-12)
    assert kernel_target_alignment(K + c, y, centred=True) == pytest.approx(
        kernel_target_alignment(K, y, centred=True), abs=1e-9
    )
    assert kernel_target_alignment(c * K, Y) == pytest.approx(kernel_target_alignment(K, y), abs=1e-12)
    assert centred_alignment(K, L) == pytest.approx(cosine(H @ K @ H, H @ L @ H), abs=1e-12)
    assert centred_alignment(L, K) == pytest.approx(centred_alignment(K, c * L + c), abs=1e-9)
    assert 0 <= centred_alignment(K, L) <= 1
    assert kernel_distance(K, L) == pytest.approx(1 - cosine(K, L), abs=1e-12)
    assert kernel_distance(c * K, K) == pytest.approx(0, abs=1e-12)
    assert centred_alignment(K, y_kernel := Y @ Y.T) == pytest.approx(
        kernel_target_alignment(K, y, centred=True), abs=1e-12
    )
    assert y_kernel.shape == (n, n)


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_kernels_whose_squares_leave_the_range_of_floats(scale: float) -> None:
    random = numpy_generator(0, "test", "range")
    F, G = random.normal(size=(2, 12, 4))
    K, L, y = F @ F.T, G @ G.T, np.arange(12) % 3
    assert kernel_target_alignment(scale * K, y) == pytest.approx(kernel_target_alignment(K, y), abs=1e-12)
    assert centred_alignment(scale * K, L / scale) == pytest.approx(centred_alignment(K, L), abs=1e-12)
    assert kernel_distance(scale * K, scale * L) == pytest.approx(kernel_distance(K, L), abs=1e-12)


def test_every_gram_gives_the_same() -> None:
    random = numpy_generator(0, "test", "grams")
    F, G = (torch.from_numpy(f) for f in random.normal(size=(2, 25, 4)))
    K, L, y = F @ F.T, G @ G.T, torch.arange(25) % 4
    operator = OperatorGram((25, 25), lambda v: K @ v, dtype=torch.float64, symmetric=True)
    for gram in (FactoredGram(F), operator, K.numpy()):
        assert centred_alignment(gram, FactoredGram(G)) == pytest.approx(centred_alignment(K, L), abs=1e-12)
        assert kernel_target_alignment(gram, y) == pytest.approx(kernel_target_alignment(K, y), abs=1e-12)
        assert kernel_distance(gram, L) == pytest.approx(kernel_distance(K, L), abs=1e-12)


def test_signs_and_regression_targets() -> None:
    y = np.array([1.0, 1.0, -1.0])
    assert kernel_target_alignment(np.outer(y, y), y.astype(int)) == pytest.approx(1)  # -1 is no class: a target
    assert kernel_target_alignment(-np.outer(y, y), y) == pytest.approx(-1)


def test_bad_input() -> None:
    K = torch.eye(3)
    with pytest.raises(UsageError, match="got 2 labels for a kernel of 3 rows"):
        kernel_target_alignment(K, [0, 1])
    with pytest.raises(UsageError, match="square"):
        kernel_target_alignment(torch.ones(3, 2), [0, 1, 1])
    with pytest.raises(UsageError, match="same items"):
        centred_alignment(K, torch.eye(4))
    with pytest.raises(NumericalError, match="constant"):
        centred_alignment(K, torch.full((3, 3), 0.1))
    with pytest.raises(NumericalError, match="undefined"):
        kernel_target_alignment(torch.zeros(3, 3), [0, 1, 1])
    with pytest.raises(NumericalError, match="zero kernel"):
        kernel_velocity(K, torch.zeros(3, 3))
    for broken in (centred_alignment, kernel_velocity, lambda _, bad: kernel_target_alignment(bad, [0, 1, 1])):
        with pytest.raises(NumericalError, match="NaN"):
            broken(K, torch.full((3, 3), torch.nan))


@settings(max_examples=30)
@given(n=st.integers(3, 20), seed=st.integers(0, 1000), e=st.integers(1, 20))
def test_power_is_its_definition(n: int, seed: int, e: int) -> None:
    random = numpy_generator(seed, "test", "power")
    vectors, y = np.linalg.qr(random.normal(size=(n, n)))[0], random.normal(size=(n, 2))
    expected = [float(np.sum((u @ y) ** 2) / np.sum(y**2)) for u in vectors.T]
    shares = power_in(torch.from_numpy(vectors[:, :e]), y)
    np.testing.assert_allclose(shares, expected[:e], atol=1e-12)
    assert sum(expected) == pytest.approx(1, abs=1e-9)
    with pytest.raises(NumericalError, match="no power"):
        power_in(torch.from_numpy(vectors), np.zeros(n))


@settings(max_examples=30)
@given(n=st.integers(2, 20), seed=st.integers(0, 1000), c=st.floats(0.01, 100))
def test_velocity_is_its_definition(n: int, seed: int, c: float) -> None:
    random = numpy_generator(seed, "test", "velocity")
    F, G = random.normal(size=(2, n, 4))
    K, L = F @ F.T, G @ G.T
    expected = np.linalg.norm(L / np.linalg.norm(L) - K / np.linalg.norm(K))
    assert kernel_velocity(K, L) == pytest.approx(expected, abs=1e-12)
    assert kernel_velocity(c * K, L, elapsed=c) == pytest.approx(expected / c, rel=1e-9)
    assert kernel_velocity(K, L) == pytest.approx((2 * kernel_distance(K, L)) ** 0.5, abs=1e-7)
    assert kernel_velocity(K, L, elapsed=4) == pytest.approx(kernel_velocity(L, K) / 4)


def test_a_small_rotation_has_all_its_digits() -> None:
    """Moved by 1e-9: the root of 1 - cos would be noise."""
    K = np.diag([1.0, 1.0])
    L = K + 1e-9 * np.array([[0.0, 1.0], [1.0, 0.0]])
    assert kernel_velocity(K, L) == pytest.approx(1e-9, rel=1e-6)

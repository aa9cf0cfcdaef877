"""Principal angles and matrix correlation against known answers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from ntkscope.core import NumericalError
from ntkscope.linalg import DenseGram, FactoredGram, OperatorGram, matrix_correlation, principal_angles
from strategies.matrices import random


class TestPrincipalAngles:
    @pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-8, 1e-3, 0.5, math.pi / 4, 1.3, math.pi / 2 - 1e-12, math.pi / 2])
    def test_known_angles_keep_their_digits(self, angle: float) -> None:
        plane = torch.eye(4, dtype=torch.float64)[:, :2]
        tilted = torch.zeros(4, 2, dtype=torch.float64)
        tilted[0, 0] = 1
        tilted[1, 1], tilted[2, 1] = math.cos(angle), math.sin(angle)
        mix = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
        found = principal_angles(plane, tilted @ mix)
        assert found[0] <= 1e-15
        assert float(found[1]) == pytest.approx(angle, rel=1e-3, abs=2e-15)  # arccos would be off by 1e-8

    @settings(max_examples=30, deadline=None)
    @given(n=st.integers(3, 12), a=st.integers(1, 3), b=st.integers(1, 3), seed=st.integers(0, 1000))
    def test_laws(self, n: int, a: int, b: int, seed: int) -> None:
        A, B = random(n, a, seed=seed), random(n, b, seed=seed + 1)
        found = principal_angles(A, B)
        assert found.shape == (min(a, b),)
        assert bool((found.diff() >= 0).all())
        assert bool((found >= 0).all())
        assert bool((found <= math.pi / 2).all())
        assert_close(found, principal_angles(B, A), rtol=1e-8, atol=1e-10)
        rotation = torch.linalg.qr(random(n, n, seed=seed + 2)).Q
        assert_close(found, principal_angles(rotation @ A, rotation @ B @ random(b, b, seed=3)), rtol=1e-6, atol=1e-8)
        assert_close(principal_angles(A, A), torch.zeros(a).double(), rtol=0, atol=1e-12)
        cosines = torch.linalg.svdvals(torch.linalg.qr(A).Q.T @ torch.linalg.qr(B).Q)
        assert_close(found.cos(), cosines.clamp_max(1), rtol=0, atol=1e-10)

    def test_dependent_columns_count_once(self) -> None:
        A = random(6, 2)
        assert principal_angles(torch.cat([A, A], 1), random(6, 3, seed=1)).shape == (2,)


class TestMatrixCorrelation:
    @settings(max_examples=30, deadline=None)
    @given(n=st.integers(1, 8), m=st.integers(1, 8), seed=st.integers(0, 1000))
    def test_against_the_definition(self, n: int, m: int, seed: int) -> None:
        A, B = random(n, m, seed=seed), random(n, m, seed=seed + 1)
        expected = float(torch.trace(A.T @ B) / (torch.trace(A.T @ A) * torch.trace(B.T @ B)).sqrt())
        assert matrix_correlation(A, B) == pytest.approx(expected)
        assert matrix_correlation(A, -2 * A) == pytest.approx(-1)
        assert matrix_correlation(A[0], B[0]) == pytest.approx(float(A[0] @ B[0] / (A[0].norm() * B[0].norm())))

    def test_every_gram(self) -> None:
        left = random(30, 4)
        matrix, other = left @ left.T, random(30, 30, seed=1)
        expected = matrix_correlation(matrix, other)
        operator = OperatorGram((30, 30), lambda v: matrix @ v, dtype=torch.float64, symmetric=True)
        for gram in (FactoredGram(left), DenseGram(matrix, symmetric=True), operator):
            assert matrix_correlation(gram, other.numpy()) == pytest.approx(expected)
            assert matrix_correlation(other, gram) == pytest.approx(expected)

    def test_nothing_correlates_with_zero(self) -> None:
        for A, B in ((torch.eye(2), torch.zeros(2, 2)), (torch.zeros(0, 0), torch.zeros(0, 0))):
            with pytest.raises(NumericalError, match="undefined"):
                matrix_correlation(A, B)

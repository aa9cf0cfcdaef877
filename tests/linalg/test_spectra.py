"""Lanczos, ranks, condition numbers and densities against dense float64 algebra and known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import (
    DenseGram,
    FactoredGram,
    OperatorGram,
    condition_number,
    effective_rank,
    eigenpairs,
    entropy_rank,
    frobenius_norm,
    singular_values,
    spectral_density,
    spectral_norm,
    stable_rank,
    stochastic_trace,
    top_eigenpairs,
)
from ntkscope.linalg.spectra.density import quadrature
from ntkscope.linalg.spectra.lanczos import lanczos
from strategies.matrices import random


def kernel(n: int, p: int, seed: int = 0) -> Tensor:
    left = random(n, p, seed=seed)
    matrix = left @ left.T
    return (matrix + matrix.T) / 2


class TestLanczos:
    @settings(max_examples=30, deadline=None)
    @given(n=st.integers(2, 30), k=st.integers(1, 4), steps=st.integers(1, 12), seed=st.integers(0, 1000))
    def test_identity(self, n: int, k: int, steps: int, seed: int) -> None:
        """K Q = Q T + r e_sᵀ, with orthonormal Q, for each start vector."""
        steps = min(steps, n)
        matrix = kernel(n, n + 2, seed)
        Q, alpha, beta, r = lanczos(matrix, random(n, k, seed=seed + 1), steps)
        for column in range(k):
            q, a, b = Q[column], alpha[column], beta[column]
            T = torch.diag(a) + torch.diag(b[:-1], 1) + torch.diag(b[:-1], -1)
            last = torch.zeros(steps, dtype=torch.float64)
            last[-1] = 1
            scale = float(torch.linalg.matrix_norm(matrix, 2))
            left_over = matrix @ q - q @ T - torch.outer(r[column], last)
            assert float(left_over.abs().max()) < 1e-12 * scale * n
            assert_close(q.T @ q, torch.eye(steps).double(), rtol=0, atol=1e-12)
            assert_close(b[-1], r[column].norm())

    def test_an_exhausted_space_ends_in_zeros(self) -> None:
        matrix = torch.diag(torch.tensor([1.0, 1.0, 3.0, 3.0]).double())
        Q, _, beta, r = lanczos(matrix, random(4, 1), 4)
        assert float(beta[0, 0]) > 0
        assert float(beta[0, 1]) == 0  # two distinct eigenvalues
        assert not Q[:, :, 2:].any()
        assert not r.any()

    @pytest.mark.parametrize(("n", "k"), [(5, 2), (200, 1), (200, 7), (200, 120), (65, 65)])
    def test_top_eigenpairs(self, n: int, k: int) -> None:
        matrix = kernel(n, 2 * n)
        values, vectors = top_eigenpairs(matrix, k)
        expected = torch.linalg.eigvalsh(matrix)
        assert_close(values, expected[-k:], rtol=1e-10, atol=1e-10)
        assert_close(matrix @ vectors, vectors * values, rtol=0, atol=1e-9 * float(expected[-1]))
        assert_close(vectors.T @ vectors, torch.eye(k).double(), rtol=0, atol=1e-10)

    @pytest.mark.parametrize("n", [6, 100])
    def test_by_magnitude(self, n: int) -> None:
        matrix = torch.diag(torch.cat([torch.tensor([-5.0, 4.0]), torch.linspace(0, 1, n - 2)]).double())
        assert_close(top_eigenpairs(matrix, 1)[0], torch.tensor([4.0]).double())
        assert_close(top_eigenpairs(matrix, 2, by="magnitude")[0], torch.tensor([-5.0, 4.0]).double())

    def test_the_zero_matrix(self) -> None:
        values, vectors = top_eigenpairs(torch.zeros(100, 100), 3)
        assert not values.any()
        assert_close(vectors.T @ vectors, torch.eye(3).double())

    def test_all_eigenpairs(self) -> None:
        matrix = kernel(9, 4)
        values, vectors = eigenpairs(matrix)
        assert_close(vectors @ torch.diag(values) @ vectors.T, matrix)
        assert_close(eigenpairs(matrix, 2)[0], values[-2:])
        with pytest.raises(NumericalError, match="NaN"):
            eigenpairs(DenseGram(torch.full((2, 2), torch.nan), symmetric=True))
        with pytest.raises(NumericalError, match="NaN"):
            DenseGram(torch.full((2, 2), torch.nan), symmetric=True).eigvalsh()


class TestRanks:
    @pytest.mark.parametrize("of", ["kernel", "features"])
    @pytest.mark.parametrize("n", [1, 5, 40])
    def test_identity_and_rank_one(self, n: int, of) -> None:  # type: ignore[no-untyped-def]
        assert effective_rank(torch.eye(n), of) == pytest.approx(n)
        v = random(n, 1)
        # rounding leaves n eigenvalues of 1e-16, or singular values of 1e-8 in the features' reading
        assert effective_rank(FactoredGram(v), of) == pytest.approx(1, abs=1e-12 if of == "kernel" else 1e-5)

    @settings(max_examples=30, deadline=None)
    @given(n=st.integers(1, 15), p=st.integers(1, 15), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 1000))
    def test_laws(self, n: int, p: int, scale: float, seed: int) -> None:
        matrix = kernel(n, p, seed)
        of_kernel, of_features = effective_rank(matrix), effective_rank(matrix, "features")
        slack = 1 + 1e-5  # rounding on zero eigenvalues
        assert of_kernel * slack >= 1
        assert of_kernel <= of_features * slack
        assert of_features <= min(n, p) * slack
        assert effective_rank(scale * matrix) == pytest.approx(of_kernel)

    def test_the_two_readings_against_their_definition(self) -> None:
        jacobian = random(8, 20)
        sigma = np.linalg.svd(jacobian.numpy(), compute_uv=False)
        for of, values in (("features", sigma), ("kernel", sigma**2)):
            shares = values / values.sum()
            assert effective_rank(FactoredGram(jacobian), of) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))

    def test_rectangular(self) -> None:
        matrix = random(6, 9)
        sigma = torch.linalg.svdvals(matrix)
        assert spectral_norm(matrix) == spectral_norm(matrix.T) == pytest.approx(float(sigma[0]))
        assert stable_rank(matrix) == pytest.approx(float(sigma.square().sum() / sigma[0] ** 2))
        assert frobenius_norm(matrix) == pytest.approx(float(matrix.norm()))
        assert spectral_norm(torch.diag(torch.tensor([1.0, -3.0]))) == pytest.approx(3)
        assert_close(singular_values(matrix), sigma)
        assert effective_rank(matrix) == pytest.approx(entropy_rank(sigma))
        assert condition_number(matrix).value == pytest.approx(float(sigma[0] / sigma[-1]))
        with pytest.raises(UsageError, match="symmetric"):
            effective_rank(matrix, of="features")

    @pytest.mark.parametrize("measure", [effective_rank, stable_rank, condition_number])
    @pytest.mark.parametrize("matrix", [torch.zeros(3, 3), torch.zeros(0, 0)])
    def test_nothing_has_no_rank(self, measure, matrix: Tensor) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(NumericalError, match="undefined"):
            measure(matrix)


class TestConditionNumber:
    def test_cut_off_is_stated_and_counts(self) -> None:
        matrix = torch.diag(torch.tensor([1.0, 1e-3, 1e-20, 0.0]).double())
        found = condition_number(matrix)
        assert found.value == pytest.approx(1e3)
        assert found.dropped == 2
        assert found.largest == 1.0
        assert found.smallest == pytest.approx(1e-3)
        assert found.cutoff == pytest.approx(4 * 2.22e-16, rel=1e-2)
        assert float(condition_number(matrix, cutoff=0.0)) == pytest.approx(1e20)
        assert condition_number(matrix, cutoff=0.0).dropped == 1

    def test_of_features_is_the_square_root(self) -> None:
        matrix = kernel(6, 20)
        root = condition_number(matrix, of="features").value
        assert root == pytest.approx(float(condition_number(matrix)) ** 0.5)


class TestDensity:
    def test_exact_is_the_smoothed_histogram(self) -> None:
        matrix = kernel(20, 30)
        found = spectral_density(matrix, width=2.0, points=50)
        eigenvalues = np.linalg.eigvalsh(matrix.numpy())
        grid = found.grid.numpy()
        naive = np.array([np.mean(np.exp(-((t - eigenvalues) ** 2) / 8) / np.sqrt(8 * np.pi)) for t in grid])
        np.testing.assert_allclose(found.density.numpy(), naive, rtol=1e-10)
        assert found.method == "exact"
        assert not found.standard_error.any()

    @pytest.mark.parametrize("method", ["exact", "quadrature"])
    def test_integrates_to_one(self, method) -> None:  # type: ignore[no-untyped-def]
        found = spectral_density(kernel(60, 100), method=method, points=4000)
        # 3 widths beyond the ends: at most 0.3 % is cut off
        assert float(torch.trapezoid(found.density, found.grid)) == pytest.approx(1, abs=3e-3)

    def test_quadrature_is_within_its_error_bars(self) -> None:
        gram = FactoredGram(random(400, 800) / 20)
        exact = spectral_density(gram, method="exact", width=0.4)
        found = spectral_density(gram, method="quadrature", width=0.4, grid=exact.grid, probes=32, steps=60)
        # 200 correlated grid points, t with 31 degrees of freedom: 5 standard errors; floor where the density is nil
        assert bool(((found.density - exact.density).abs() <= 5 * found.standard_error + 1e-6).all())
        middle = exact.density > 0.1 * exact.density.max()
        assert float((found.standard_error / exact.density)[middle].mean()) < 0.05

    def test_quadrature_needs_only_products(self) -> None:
        gram = OperatorGram((5000, 5000), lambda v: 3 * v, dtype=torch.float64, symmetric=True)
        found = spectral_density(gram)
        assert found.method == "quadrature"
        assert float(found.grid[found.density.argmax()]) == pytest.approx(3, rel=0.01)

    @pytest.mark.parametrize("function", [torch.log, torch.sqrt, torch.square])
    def test_stochastic_trace(self, function) -> None:  # type: ignore[no-untyped-def]
        gram = FactoredGram(random(300, 600) / 20)
        exact = float(function(gram.eigvalsh()).sum())
        estimate, error = stochastic_trace(gram, function, probes=32, steps=60)
        assert abs(estimate - exact) < 4.5 * error
        assert error < 0.05 * float(function(gram.eigvalsh()).abs().sum())

    def test_quadrature_is_exact_for_polynomials(self) -> None:
        matrix = kernel(12, 20) / 12
        nodes, weights = quadrature(matrix, probes=3, steps=4, seed=5)
        assert nodes.shape == weights.shape == (3, 4)
        assert_close(weights.sum(1), torch.ones(3).double())
        full_nodes, full_weights = quadrature(matrix, probes=3, steps=12, seed=5)
        for power in range(8):  # degree below 2 · steps
            assert_close((weights * nodes**power).sum(1), (full_weights * full_nodes**power).sum(1))

    def test_sizes_zero_and_one(self) -> None:
        for method in ("exact", "quadrature"):
            found = spectral_density(torch.tensor([[2.0]]), method=method)
            assert float(found.grid[found.density.argmax()]) == pytest.approx(2, rel=0.01)
        assert spectral_density(torch.zeros(3, 3)).width > 0
        with pytest.raises(UsageError, match="at least one row"):
            spectral_density(torch.zeros(0, 0))

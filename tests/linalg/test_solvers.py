"""Solvers against dense float64 algebra, against each other, and on matrices that fight back."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ntkscope.core import NumericalError
from ntkscope.linalg import (
    DenseGram,
    FactoredGram,
    NumericalWarning,
    OperatorGram,
    block_jacobi,
    cholesky_solve,
    conjugate_gradient,
    jacobi,
    minimum_norm_solve,
    nystrom,
)
from ntkscope.linalg.solvers.preconditioner import Preconditioner
from strategies.matrices import random, with_eigenvalues

SOLVERS = [cholesky_solve, conjugate_gradient, minimum_norm_solve]


def hilbert(n: int) -> Tensor:
    index = torch.arange(n, dtype=torch.float64)
    return 1 / (index[:, None] + index + 1)


@pytest.fixture(autouse=True)
def quiet_unless_said() -> object:
    """A solver that warns without reason fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericalWarning)
        yield


class TestEverySolver:
    @pytest.mark.parametrize("solve", SOLVERS)
    @pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 3), (20, 0)])
    def test_solves(self, solve, shape) -> None:  # type: ignore[no-untyped-def]
        matrix = with_eigenvalues(torch.linspace(1, 10, 20))
        targets = random(*shape, seed=1)
        found = solve(matrix, targets)
        assert found.solution.shape == shape
        assert_close(
            found.solution, torch.linalg.solve(matrix, targets.reshape(20, -1)).reshape(shape), rtol=1e-7, atol=1e-7
        )
        assert found.warnings == ()

    @pytest.mark.parametrize("solve", SOLVERS)
    def test_every_gram(self, solve) -> None:  # type: ignore[no-untyped-def]
        left = random(12, 30)
        targets = random(12, 2, seed=1)
        expected = torch.linalg.solve(left @ left.T, targets)
        operator = OperatorGram((12, 12), lambda v: left @ (left.T @ v), dtype=torch.float64, symmetric=True)
        for gram in (DenseGram(left @ left.T, symmetric=True), FactoredGram(left), operator):
            assert_close(solve(gram, targets).solution, expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("solve", SOLVERS)
    def test_sizes_zero_and_one(self, solve) -> None:  # type: ignore[no-untyped-def]
        assert_close(
            solve(torch.tensor([[4.0]]), torch.tensor([2.0])).solution, torch.tensor([0.5], dtype=torch.float64)
        )
        assert solve(torch.zeros(0, 0), torch.zeros(0, 3)).solution.shape == (0, 3)


class TestCholesky:
    def test_ridge(self) -> None:
        matrix, targets = with_eigenvalues(torch.linspace(0.5, 4, 9)), random(9, 2, seed=1)
        found = cholesky_solve(matrix, targets, ridge=0.3)
        assert_close(found.solution, torch.linalg.solve(matrix + 0.3 * torch.eye(9), targets))
        assert found.jitter == 0
        assert found.residual < 1e-13
        assert found.smallest_eigenvalue == pytest.approx(0.5, rel=1e-2)  # an estimate to 1e-3

    @pytest.mark.parametrize("n", [10, 150])
    def test_smallest_eigenvalue_is_of_the_kernel_itself(self, n: int) -> None:
        matrix = with_eigenvalues(torch.logspace(-6, 0, n))
        for ridge in (0.0, 1e-6):
            found = cholesky_solve(matrix, torch.ones(n), ridge)
            assert found.smallest_eigenvalue == pytest.approx(1e-6, rel=1e-2)

    def test_a_singular_kernel_gets_a_result_and_says_its_jitter(self) -> None:
        left = random(30, 5)
        matrix = left @ left.T
        targets = matrix @ random(30, seed=1)
        with pytest.warns(NumericalWarning, match=r"jitter .* was added|singular to working precision") as caught:
            found = cholesky_solve(matrix, targets)
        assert found.warnings == tuple(str(w.message) for w in caught)
        assert abs(found.smallest_eigenvalue) < 1e-11
        assert found.residual < 1e-6

    def test_jitter_is_used_only_when_needed_and_as_little_as_works(self) -> None:
        matrix = with_eigenvalues(torch.cat([torch.tensor([-1e-8]), torch.linspace(0.5, 2, 20)]))
        with pytest.warns(NumericalWarning, match="not positive definite"):
            found = cholesky_solve(matrix, torch.ones(21))
        assert 1e-8 < found.jitter <= 1.1e-7  # a ladder of tenfold steps
        assert found.smallest_eigenvalue == pytest.approx(-1e-8, rel=0.05)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cholesky_solve(matrix, torch.ones(21), ridge=1e-6).jitter == 0

    def test_a_matrix_that_is_no_kernel_is_refused(self) -> None:
        matrix = with_eigenvalues(torch.linspace(-0.5, 2, 10))
        with pytest.raises(NumericalError, match=r"smallest eigenvalue is -0\.5.*minimum_norm_solve"):
            cholesky_solve(matrix, torch.ones(10))
        with pytest.raises(NumericalError, match="not positive definite"):
            cholesky_solve(torch.zeros(3, 3), torch.ones(3))
        assert cholesky_solve(matrix, torch.ones(10), ridge=1.0).jitter == 0


class TestMinimumNorm:
    def test_equals_the_pseudo_inverse(self) -> None:
        left = random(15, 6)
        matrix, targets = left @ left.T, random(15, 2, seed=1)
        found = minimum_norm_solve(matrix, targets)
        assert_close(found.solution, torch.linalg.pinv(matrix, hermitian=True, rtol=found.cutoff) @ targets)
        assert found.rank == 6
        assert found.cutoff == pytest.approx(15 * 2.22e-16, rel=1e-2)

    @settings(max_examples=30, deadline=None)
    @given(n=st.integers(2, 12), rank=st.integers(1, 11), seed=st.integers(0, 1000))
    def test_has_the_smallest_norm_among_the_solutions(self, n: int, rank: int, seed: int) -> None:
        rank = min(rank, n - 1)
        left = random(n, rank, seed=seed)
        matrix = left @ left.T
        targets = matrix @ random(n, seed=seed + 1)
        found = minimum_norm_solve(matrix, targets, cutoff=1e-10)
        null = torch.linalg.svd(left).U[:, rank:]
        other = found.solution + null @ random(n - rank, seed=seed + 2)
        assert_close(matrix @ other, targets, rtol=1e-6, atol=1e-6)  # a solution too
        assert float(found.solution.norm()) < float(other.norm())
        assert_close(
            null.T @ found.solution, torch.zeros(n - rank).double(), rtol=0, atol=1e-6 * float(found.solution.norm())
        )

    def test_the_default_cut_off_knows_where_the_entries_came_from(self) -> None:
        left = random(200, 5)
        assert minimum_norm_solve((left @ left.T).float(), torch.ones(200)).rank == 5

    def test_negative_eigenvalues_are_said(self) -> None:
        with pytest.warns(NumericalWarning, match="1 negative"):
            found = minimum_norm_solve(torch.diag(torch.tensor([1.0, -1.0])), torch.ones(2))
        assert_close(found.solution, torch.tensor([1.0, -1.0]).double())
        assert found.smallest_eigenvalue == -1

    def test_what_is_cut_off(self) -> None:
        found = minimum_norm_solve(torch.zeros(3, 3), torch.ones(3))
        assert (found.rank, found.residual) == (0, 1.0)
        assert not found.solution.any()
        half = minimum_norm_solve(torch.diag(torch.tensor([1.0, 0.0])), torch.tensor([1.0, 1.0]))
        assert half.rank == 1
        assert half.residual == pytest.approx(2**-0.5)
        matrix = with_eigenvalues(torch.tensor([1.0, 1e-3, 1e-6]))
        assert [minimum_norm_solve(matrix, torch.ones(3), cutoff=c).rank for c in (1e-2, 1e-4, 1e-8)] == [1, 2, 3]


def no_preconditioner(K: object, ridge: float) -> Preconditioner | None:
    return None


class TestConjugateGradient:
    @settings(max_examples=30, deadline=None)
    @given(
        n=st.integers(1, 40),
        columns=st.integers(1, 5),
        seed=st.integers(0, 1000),
        make=st.sampled_from([no_preconditioner, jacobi, block_jacobi, nystrom]),
    )
    def test_equals_cholesky(self, n: int, columns: int, seed: int, make) -> None:  # type: ignore[no-untyped-def]
        left = random(n, n + 3, seed=seed)
        gram, targets = FactoredGram(left), random(n, columns, seed=seed + 1)
        found = conjugate_gradient(gram, targets, 0.1, make(gram, 0.1), rtol=1e-11)
        expected = cholesky_solve(gram, targets, 0.1).solution
        assert found.converged
        assert bool((found.relative_residual <= 1e-11).all())
        # an error of cond · rtol; the condition number is below 1e4 here
        assert_close(found.solution, expected, rtol=1e-6, atol=1e-7 * float(expected.abs().max()))

    def test_needs_as_many_steps_as_there_are_eigenvalues(self) -> None:
        matrix = with_eigenvalues(torch.tensor([1.0, 2.0, 5.0]).repeat(10))
        assert conjugate_gradient(matrix, random(30, 2)).iterations == 3

    @pytest.mark.parametrize(("make", "kept"), [(jacobi, 0.2), (block_jacobi, 0.35), (nystrom, 0.2)])
    def test_preconditioners_save_iterations_where_they_should(self, make, kept: float) -> None:  # type: ignore[no-untyped-def]
        n = 300
        if make is jacobi:  # badly scaled rows
            scale = torch.logspace(0, 1.5, n, dtype=torch.float64)
            matrix = with_eigenvalues(torch.linspace(1, 3, n)) * scale[:, None] * scale
        elif make is block_jacobi:  # strong blocks, weak rest
            blocks = [with_eigenvalues(torch.logspace(-3, 1, 50), seed=s) for s in range(6)]
            matrix = torch.block_diag(*blocks) + 1e-5 * with_eigenvalues(torch.linspace(0, 1, n))
            make = lambda K, ridge: block_jacobi(K, ridge, size=50)  # noqa: E731
        else:  # a few large eigenvalues over a flat floor
            matrix = with_eigenvalues(torch.cat([torch.logspace(1, 6, 60), torch.ones(n - 60)]))
        gram, targets = DenseGram((matrix + matrix.T) / 2, symmetric=True), random(n, seed=1)
        plain = conjugate_gradient(gram, targets, 1e-3, max_iter=20_000)
        better = conjugate_gradient(gram, targets, 1e-3, make(gram, 1e-3), max_iter=20_000)
        assert better.converged
        assert better.iterations < kept * plain.iterations

    def test_columns_converge_on_their_own(self) -> None:
        matrix = with_eigenvalues(torch.logspace(-2, 2, 50))
        values, vectors = torch.linalg.eigh(matrix)
        targets = torch.stack([vectors[:, 0], torch.zeros(50).double(), random(50), 1e6 * random(50, seed=2)], 1)
        found = conjugate_gradient(matrix, targets, rtol=1e-10)
        assert found.converged
        assert_close(found.solution[:, 0], vectors[:, 0] / values[0], rtol=1e-6, atol=1e-6 / float(values[0]))
        assert not found.solution[:, 1].any()

    def test_asks_for_nothing_but_products(self) -> None:
        calls = []

        def multiply(v: Tensor) -> Tensor:
            calls.append(v.shape[1])
            return 2 * v

        gram = OperatorGram((10_000_000, 10_000_000), multiply, dtype=torch.float32, symmetric=True)
        found = conjugate_gradient(gram, torch.ones(10_000_000), dtype=torch.float32, rtol=1e-6)
        assert found.iterations == 1
        assert len(calls) == found.passes == 2

    def test_running_out_of_iterations_is_said(self) -> None:
        with pytest.warns(NumericalWarning, match=r"1 of 1 columns did not reach rtol .* in 3 of at most 3") as caught:
            found = conjugate_gradient(hilbert(12), torch.ones(12), max_iter=3)
        assert not found.converged
        assert found.iterations == 3
        assert float(found.relative_residual) > 1e-8
        assert found.warnings == (str(caught[0].message),)

    def test_singular_but_consistent(self) -> None:
        left = random(40, 8)
        targets = left @ random(8, seed=1)
        found = conjugate_gradient(FactoredGram(left), targets)
        assert found.converged
        assert_close(found.solution, minimum_norm_solve(left @ left.T, targets, 1e-10).solution, rtol=1e-5, atol=1e-6)

    def test_inconsistent_stops_and_says_so(self) -> None:
        with pytest.warns(NumericalWarning, match="did not reach"):
            found = conjugate_gradient(torch.diag(torch.tensor([1.0, 0.0])), torch.tensor([1.0, 1.0]))
        assert not found.converged
        assert bool(torch.isfinite(found.solution).all())

    def test_negative_curvature_is_refused(self) -> None:
        with pytest.raises(NumericalError, match="negative curvature"):
            conjugate_gradient(torch.diag(torch.tensor([1.0, -1.0])), torch.tensor([0.5, 1.0]))

    def test_nan_in_products_is_refused(self) -> None:
        gram = OperatorGram((3, 3), lambda v: v * torch.nan, symmetric=True)
        with pytest.raises(NumericalError, match="NaN"):
            conjugate_gradient(gram, torch.ones(3))

    def test_callback_follows(self) -> None:
        seen: list[tuple[int, float]] = []
        found = conjugate_gradient(
            with_eigenvalues(torch.linspace(1, 9, 30)), random(30), callback=lambda i, r: seen.append((i, r))
        )
        assert [i for i, _ in seen] == list(range(1, found.iterations + 1))
        assert seen[-1][1] <= 1e-8 < seen[0][1]


class TestPreconditioners:
    def test_block_jacobi_of_one_block_is_the_inverse(self) -> None:
        matrix, targets = with_eigenvalues(torch.linspace(1, 5, 20)), random(20, 2)
        gram = DenseGram(matrix, symmetric=True)
        assert_close(block_jacobi(gram, 0.5)(targets), cholesky_solve(gram, targets, 0.5).solution)

    def test_block_jacobi_keeps_samples_together(self) -> None:
        matrix = with_eigenvalues(torch.linspace(1, 5, 12))
        gram = DenseGram(matrix, symmetric=True, outputs=3)
        unit = torch.eye(12, dtype=torch.float64)
        inverse = block_jacobi(gram, size=4)(unit)
        assert [int((inverse[i : i + 3] != 0).sum()) for i in range(0, 12, 3)] == [9] * 4

    def test_nystrom_of_full_rank_is_the_inverse_up_to_scale(self) -> None:
        matrix, targets = with_eigenvalues(torch.linspace(1, 5, 20)), random(20, 2)
        gram = DenseGram(matrix, symmetric=True)
        found = nystrom(gram, 0.5, rank=20)(targets)
        # 1.5 = smallest eigenvalue + ridge; the stabilising shift costs digits
        assert_close(found, 1.5 * cholesky_solve(gram, targets, 0.5).solution, rtol=1e-4, atol=1e-4)

    def test_preconditioners_refuse_what_they_cannot_use(self) -> None:
        indefinite = DenseGram(torch.diag(torch.tensor([1.0, -1.0])), symmetric=True)
        with pytest.raises(NumericalError, match=r"rows \[1\]"):
            jacobi(indefinite)
        with pytest.raises(NumericalError, match="block 0:2"):
            block_jacobi(indefinite)
        with pytest.raises(NumericalError, match="semi-definite"):
            nystrom(indefinite)

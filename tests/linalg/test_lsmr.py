"""LSMR against SciPy's lsmr and lstsq on random shapes, ranks, ridges and numbers of columns."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import DenseGram, NumericalWarning, lsmr
from ntkscope.linalg.grams.linear_map import LinearMap
from strategies.matrices import of_rank, random


def oracle(A: Tensor, Y: Tensor, ridge: float) -> Tensor:
    """The minimum-norm solution by SciPy's lstsq, the ridge as rows below the matrix."""
    p = A.shape[1]
    a, y = A.numpy(), Y.reshape(len(Y), -1).numpy()
    if ridge:
        a, y = np.vstack([a, np.sqrt(ridge) * np.eye(p)]), np.vstack([y, np.zeros((p, y.shape[1]))])
    return torch.from_numpy(scipy.linalg.lstsq(a, y, cond=1e-12)[0]).reshape(p, *Y.shape[1:])


@dataclass(frozen=True)
class Products:
    """The smallest thing `lsmr` takes; counts its products."""

    A: Tensor
    calls: list[tuple[str, int]]

    @property
    def shape(self) -> Any:
        return self.A.shape

    def matvec(self, V: Tensor) -> Tensor:
        self.calls.append(("A", V.shape[1]))
        return self.A.to(V.dtype) @ V

    def rmatvec(self, U: Tensor) -> Tensor:
        self.calls.append(("At", U.shape[1]))
        return self.A.T.to(U.dtype) @ U


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 14), st.integers(1, 4), st.sampled_from([0.0, 1e-3, 2.0]))
@settings(deadline=None, max_examples=60)
def test_minimum_norm_solutions_of_any_shape_and_rank(n: int, p: int, rank: int, k: int, ridge: float) -> None:
    rank = min(n, p, rank)
    A, Y = of_rank(n, p, rank, seed=n), random(n, k, seed=p)
    found = lsmr(A, Y, ridge=ridge, rtol=1e-13)
    expected = oracle(A, Y, ridge)
    assert_close(found.solution, expected, rtol=1e-9, atol=1e-9)
    assert found.converged
    assert bool(found.columns_converged.all())
    assert found.iterations <= 3 * rank + 3
    residual = torch.linalg.vector_norm(Y - A @ expected, dim=0)
    assert_close(found.residual_norm, residual, rtol=1e-8, atol=1e-9)
    stacked = torch.hypot(residual, ridge**0.5 * torch.linalg.vector_norm(expected, dim=0))
    assert_close(found.history[-1], stacked / torch.linalg.vector_norm(Y, dim=0), rtol=1e-6, atol=1e-7)
    assert bool((found.history.diff(dim=0) <= 1e-12).all())  # LSMR's residuals never grow
    assert len(found.history) == found.iterations + 1


def test_iterates_are_those_of_scipy() -> None:
    """The same recurrence: after five iterations, far from converged, the same iterate."""
    A, Y = random(40, 25), random(40, 3, seed=1)
    with pytest.warns(NumericalWarning, match="3 of 3 columns did not reach rtol 1e-14 in 5 of at most 5 iterations"):
        found = lsmr(A, Y, ridge=0.3, rtol=1e-14, max_iter=5)
    for column in range(3):
        theirs = scipy.sparse.linalg.lsmr(
            A.numpy(), Y[:, column].numpy(), damp=0.3**0.5, atol=0, btol=0, conlim=0, maxiter=5
        )
        assert_close(found.solution[:, column], torch.from_numpy(theirs[0]), rtol=1e-12, atol=1e-13)
        assert float(found.history[-1, column] * Y[:, column].norm()) == pytest.approx(theirs[3], rel=1e-12)
    assert not found.converged
    assert not bool(found.columns_converged.any())


def test_columns_stop_on_their_own_and_are_left_out_of_the_products() -> None:
    A = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0])).double()
    Y = torch.stack([A[:, 0], torch.ones(4).double(), torch.zeros(4).double()], 1)
    products = Products(A, [])
    found = lsmr(products, Y, rtol=1e-12)
    assert_close(found.solution, torch.linalg.solve(A, Y), rtol=1e-10, atol=1e-12)
    assert found.converged
    widths = [width for name, width in products.calls if name == "A"]
    assert widths == [
        2,
        1,
        1,
        1,
        3,
    ]  # zeros need no step, an eigenvector one, the third column all four; then the check
    assert found.relative_residual[2] == 0


def test_an_operator_keeps_the_dtype_of_its_right_hand_sides() -> None:
    products = Products(of_rank(8, 5, 5), [])
    assert isinstance(products, LinearMap)
    found = lsmr(products, random(8).float(), rtol=1e-5)
    assert (found.solution.dtype, found.solution.shape) == (torch.float32, (5,))
    assert_close(found.solution.double(), oracle(products.A, random(8), 0.0), rtol=1e-3, atol=1e-4)


def test_grams_arrays_and_float32_matrices() -> None:
    A, y = of_rank(9, 9, 6), random(9, seed=4)
    K = A @ A.T
    assert_close(lsmr(DenseGram(K), y, rtol=1e-13).solution, oracle(K, y, 0.0), rtol=1e-8, atol=1e-9)
    assert_close(lsmr(A.numpy(), y.numpy(), rtol=1e-13).solution, oracle(A, y, 0.0), rtol=1e-8, atol=1e-9)
    single = A.float()[:, :5]
    found = lsmr(single, y, rtol=1e-13)
    assert found.solution.dtype == torch.float64
    assert_close(found.solution, oracle(single.double(), y, 0.0), rtol=1e-8, atol=1e-9)


def test_sizes_of_columns_do_not_matter() -> None:
    A, y = of_rank(10, 6, 6), random(10)
    found = lsmr(A, torch.stack([1e-200 * y, y, 1e200 * y], 1), rtol=1e-13)
    expected = oracle(A, y, 0.0)
    for column, factor in enumerate((1e-200, 1.0, 1e200)):
        assert_close(found.solution[:, column] / factor, expected, rtol=1e-10, atol=1e-10)


def test_nothing_to_fit() -> None:
    A = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double()
    found = lsmr(A, torch.tensor([0.0, 3.0]).double())  # orthogonal to the range
    assert found.solution.tolist() == [0, 0]
    assert (found.iterations, found.converged) == (0, True)
    assert found.relative_residual.tolist() == [1.0]
    assert lsmr(A, torch.zeros(2, 0)).solution.shape == (2, 0)
    assert lsmr(torch.zeros(3, 2), torch.ones(3)).solution.tolist() == [0, 0]


def test_rounding_noise_is_not_followed_into_the_null_space() -> None:
    """Singular values at the rounding unit, targets outside the range, and a tolerance that cannot be reached."""
    A = of_rank(30, 20, 12)
    noisy = A + 1e-17 * random(30, 20, seed=9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        found = lsmr(noisy, random(30, seed=3), rtol=1e-16, max_iter=500)
    assert_close(found.solution, oracle(A, random(30, seed=3), 0.0), rtol=1e-6, atol=1e-6)


def test_callback_sees_the_tests_fall_to_the_goal() -> None:
    seen: list[tuple[int, float]] = []
    found = lsmr(of_rank(12, 9, 9), random(12), rtol=1e-9, callback=lambda step, test: seen.append((step, test)))
    assert [step for step, _ in seen] == list(range(1, found.iterations + 1))
    assert seen[-1][1] <= 1e-9 < seen[-2][1]


def test_bad_numbers_and_bad_products() -> None:

    class Short(Products):
        def matvec(self, V: Tensor) -> Tensor:
            return super().matvec(V)[:-1]

    with pytest.raises(UsageError, match=r"matvec of Short with shape \(4, 4\) gave torch.float64 of shape \(3, 1\)"):
        lsmr(Short(torch.eye(4), []), torch.arange(4.0).double())

    class Broken(Products):
        def rmatvec(self, U: Tensor) -> Tensor:
            return super().rmatvec(U) * torch.nan if len(self.calls) > 3 else super().rmatvec(U)

    with pytest.raises(NumericalError, match="a product with A gave NaN"):
        lsmr(Broken(random(4, 4), []), torch.arange(4.0).double())

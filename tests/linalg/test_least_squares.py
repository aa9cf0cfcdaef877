"""Dense least squares by SVD and by QR, and the block algorithms under them, against LAPACK on random shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import NumericalWarning, cholesky_solve, least_squares
from ntkscope.linalg.solvers.blocked import HouseholderQR, cholesky, mirror, solve_triangular, symmetrise, upper_product
from ntkscope.linalg.solvers.least_squares import _by_qr
from strategies.matrices import of_rank, random

SIZES = st.integers(1, 12)


def oracle(A: Tensor, Y: Tensor, ridge: float, weights: Tensor | None) -> Tensor:
    """SciPy's lstsq on weighted rows with the ridge stacked below."""
    roots = np.ones(len(A)) if weights is None else np.sqrt(weights.numpy())
    a, y = roots[:, None] * A.numpy(), roots[:, None] * Y.numpy()
    if ridge:
        a = np.vstack([a, np.sqrt(ridge) * np.eye(A.shape[1])])
        y = np.vstack([y, np.zeros((A.shape[1], y.shape[1]))])
    return torch.from_numpy(scipy.linalg.lstsq(a, y, cond=1e-12)[0])


@given(SIZES, SIZES, SIZES, st.integers(1, 3), st.sampled_from([0.0, 1e-3, 2.0]), st.booleans())
@settings(deadline=None, max_examples=80)
def test_both_roads_give_the_minimum_norm_solution(
    n: int, p: int, rank: int, k: int, ridge: float, weighted: bool
) -> None:
    rank = min(n, p, rank)
    A, Y = of_rank(n, p, rank), random(n, k, seed=7)
    weights = random(n, seed=8).square() + 0.1 if weighted else None
    expected = oracle(A, Y, ridge, weights)
    found = least_squares(A, Y, ridge=ridge, weights=weights, rtol=1e-11)
    assert_close(found.solution, expected, rtol=1e-8, atol=1e-8)
    assert found.method == "svd"
    assert found.rank == (min(n, p) if ridge else rank)
    roots = torch.ones(n, 1) if weights is None else weights.sqrt()[:, None]
    x, rank, values = _by_qr(roots * A, roots * Y, ridge, 1e-11)
    assert_close(x, expected, rtol=1e-8, atol=1e-8)
    assert rank == found.rank
    if values is not None and found.singular_values is not None:
        assert_close(values, found.singular_values, rtol=1e-6, atol=1e-6)
    residual = torch.linalg.vector_norm(roots * (Y - A @ expected), dim=0)
    assert_close(found.residual_norm, residual, rtol=1e-8, atol=1e-8)


def test_the_condition_number_is_not_squared() -> None:
    """Condition number 1e10: both roads keep six digits of a solution of which the normal equations keep none."""
    left, right = torch.linalg.qr(random(40, 6)).Q, torch.linalg.qr(random(6, 6, seed=1)).Q
    A = left @ torch.diag(torch.logspace(0, -10, 6, dtype=torch.float64)) @ right.T
    x = right.T @ torch.ones(6, 1, dtype=torch.float64)
    for solution in (least_squares(A, A @ x).solution, _by_qr(A.clone(), A @ x, 0.0, 1e-14)[0]):
        assert float((solution - x).norm() / x.norm()) < 1e-5
    normal = torch.linalg.solve(A.T @ A, A.T @ (A @ x))
    assert float((normal - x).norm() / x.norm()) > 1e-3  # canary: the difference can be seen


def test_the_cutoff_decides_and_is_said() -> None:
    A = torch.diag(torch.tensor([1.0, 1e-3, 1e-9])).double()
    y = torch.ones(3).double()
    assert least_squares(A, y).rank == 3
    found = least_squares(A, y, rtol=1e-6)
    assert (found.rank, found.cutoff) == (2, 1e-6)
    assert_close(found.solution, torch.tensor([1.0, 1e3, 0.0]).double())
    assert_close(found.singular_values, torch.tensor([1.0, 1e-3, 1e-9]).double())
    assert least_squares(A.float(), y).cutoff == pytest.approx(3 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weights": torch.tensor([1.0, -1.0])}, r"got weights of shape \(2,\) \(smallest -1.0\)"),
        ({"weights": torch.zeros(2)}, "not all zero"),
    ],
)
def test_wrong_use(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        least_squares(torch.eye(2), torch.ones(2), **options)


# -- in blocks ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 7))
@settings(deadline=None, max_examples=40)
def test_householder_qr_in_blocks(m: int, n: int, block: int) -> None:
    m, n = max(m, n), min(m, n)
    A = random(m, n, seed=m)
    A[:, n // 2] = 0  # a column with nothing to reflect
    qr = HouseholderQR(A.clone(), block)
    full = torch.cat([qr.values[:n].triu(), torch.zeros(m - n, n, dtype=torch.float64)])
    assert_close(qr.apply(full), A, rtol=1e-10, atol=1e-10)
    Q = qr.apply(torch.eye(m, dtype=torch.float64))
    assert_close(Q.T @ Q, torch.eye(m, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    assert_close(qr.apply(A, transposed=True), full, rtol=1e-10, atol=1e-10)


@given(st.integers(1, 20), st.integers(1, 7))
@settings(deadline=None, max_examples=40)
def test_cholesky_and_triangles_in_blocks(n: int, block: int) -> None:
    A = random(n, n, seed=n)
    A = A @ A.T + torch.eye(n, dtype=torch.float64)
    work = A.clone()
    assert cholesky(work, block)
    L = torch.linalg.cholesky(A)
    assert_close(work.tril(), L, rtol=1e-10, atol=1e-10)
    assert torch.equal(work.triu(1), A.triu(1))  # kept for a second attempt
    mirror(work, A.diagonal().clone(), block)
    assert torch.equal(work, (A.triu() + A.triu(1).T))
    Y = random(n, 3, seed=1)
    both = L + L.T.triu(1)
    for upper in (False, True):
        T = both.triu() if upper else both.tril()
        for transposed in (False, True):
            expected = torch.linalg.solve(T.T if transposed else T, Y)
            found = solve_triangular(both, Y, upper=upper, transposed=transposed, block=block)
            assert_close(found, expected, rtol=1e-8, atol=1e-8)
    for transposed in (False, True):
        R = both.triu().T if transposed else both.triu()
        assert_close(upper_product(both, Y, transposed=transposed, block=block), R @ Y, rtol=1e-10, atol=1e-10)
    skewed = random(n, n, seed=3)
    expected = (skewed + skewed.T) / 2
    symmetrise(skewed, block)
    assert torch.equal(skewed, expected)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_a_solve_in_blocks_is_the_same_solve(ridge: float) -> None:
    A = random(50, 60)
    K, Y = A @ A.T, random(50, 2, seed=1)
    kept = K.clone()
    whole, parts = (cholesky_solve(K, Y, ridge, block=block) for block in (None, 16))
    assert_close(parts.solution, whole.solution, rtol=1e-8, atol=1e-10)
    assert parts.smallest_eigenvalue == pytest.approx(whole.smallest_eigenvalue, rel=1e-2)
    assert torch.equal(K, kept)


def test_jitter_in_blocks() -> None:
    """Singular: the first attempt fails, the matrix is put back, and the second has the same jitter as LAPACK's."""
    A = random(40, 10)
    with pytest.warns(NumericalWarning, match="jitter"):
        whole = cholesky_solve(A @ A.T - 1e-13 * torch.eye(40), A[:, 0])
    with pytest.warns(NumericalWarning, match="jitter"):
        parts = cholesky_solve(A @ A.T - 1e-13 * torch.eye(40), A[:, 0], block=7)
    assert parts.jitter > 0
    assert parts.residual < 1e-6
    assert whole.residual < 1e-6
    with pytest.raises(NumericalError, match="not positive definite: its smallest eigenvalue is -1"):
        cholesky_solve(torch.diag(torch.tensor([3.0, 2.0, -1.0])), torch.ones(3), block=2)

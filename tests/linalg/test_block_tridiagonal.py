"""The block-tridiagonal form: the matrix itself, its inverse with any diagonal added, and which diagonals make it definite."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from ntkscope.core import NumericalError
from ntkscope.linalg.spectra.block_tridiagonal import block_tridiagonal


def kernel(n: int, decades: float) -> torch.Tensor:
    """Eigenvalues evenly over so many decades, in a random basis."""
    generator = torch.Generator().manual_seed(n)
    basis = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q
    return (basis * torch.logspace(0, -decades, n, dtype=torch.float64)) @ basis.T


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 31])
@pytest.mark.parametrize("width", [1, 2, 4, 64])
def test_it_is_the_matrix(n: int, width: int) -> None:
    A = kernel(n, 4)
    form = block_tridiagonal(A.clone(), width)
    Q, B = form.basis.T, form.dense()
    assert_close(Q.T @ Q, torch.eye(n, dtype=A.dtype), rtol=0, atol=1e-13)
    assert_close(Q @ B @ Q.T, A, rtol=0, atol=1e-13)
    assert not B.tril(-2 * width).any()


@pytest.mark.parametrize("alpha", [1e-9, 1e-3, 10.0])
@pytest.mark.parametrize("decades", [2, 16])
def test_the_inverse_is_that_of_the_dense_matrix(alpha: float, decades: float) -> None:
    A = kernel(23, decades)
    form = block_tridiagonal(A.clone(), 4)
    values, vectors = torch.linalg.eigh(A)
    expected = (vectors / (values + alpha)) @ vectors.T
    found, diagonal = form.inverse(alpha, form.basis)
    atol = 1e-14 * (1 + 1 / alpha) * float(expected.abs().max())  # the condition number is 1/α
    assert_close(found, expected, rtol=0, atol=atol)
    assert_close(diagonal, expected.diagonal(), rtol=0, atol=atol)


def test_it_says_where_a_shift_is_definite() -> None:
    A = kernel(20, 1) - 0.5 * torch.eye(20, dtype=torch.float64)
    form, smallest = block_tridiagonal(A.clone(), 3), float(torch.linalg.eigvalsh(A)[0])
    assert form.factors(-smallest + 1e-10) is not None
    assert form.factors(-smallest - 1e-10) is None
    with pytest.raises(NumericalError, match="positive definite"):
        form.inverse(-smallest - 1e-10, A)


def test_a_matrix_of_zeros_has_a_form() -> None:
    form, eye = block_tridiagonal(torch.zeros(7, 7, dtype=torch.float64), 2), torch.eye(7, dtype=torch.float64)
    assert_close(form.inverse(2.0, form.basis)[0], eye / 2)

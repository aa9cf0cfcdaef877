"""Every copy of a repeated eigenvalue, on every kind of Gram, or an error that says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from contracts.counted import CountedGram
from ntkscope.core import NumericalError
from ntkscope.linalg import FactoredGram, Gram, OperatorGram, as_gram, eigenpairs, top_eigenpairs
from ntkscope.linalg.grams.corrected import CorrectedGram
from ntkscope.linalg.spectra.missed import none_above


def spectrum(n: int, copies: int, seed: int) -> tuple[Tensor, Tensor]:
    """Eigenvectors, and eigenvalues with a top of `copies` equal ones above a random rest, descending."""
    random = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(n, n, generator=random, dtype=torch.float64)).Q
    rest = torch.rand(n - copies, generator=random, dtype=torch.float64).square()
    return basis, torch.cat([torch.full((copies,), 2.0).double(), rest.sort(descending=True).values])


def matrix_of(basis: Tensor, values: Tensor) -> Tensor:
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


KINDS: dict[str, Callable[[Tensor, Tensor], Gram]] = {
    "dense": lambda basis, values: as_gram(matrix_of(basis, values)),
    "factored": lambda basis, values: FactoredGram(basis * values.sqrt()),
    "operator": lambda basis, values: OperatorGram(
        (len(basis), len(basis)),
        lambda v: basis @ (values[:, None] * (basis.T @ v)),
        dtype=torch.float64,
        symmetric=True,
    ),
    "tiles": lambda basis, values: CountedGram(matrix_of(basis, values), size=100),
    "corrected": lambda basis, values: CorrectedGram(
        as_gram(matrix_of(basis, torch.where(values == 2, 0.0, values))), basis[:, values == 2], values[values == 2]
    ),
}


def check(gram: Gram, matrix: Tensor, values: Tensor, k: int) -> None:
    found, vectors = eigenpairs(gram, k)
    expected = values.sort().values[-k:]
    assert_close(found, expected, rtol=0, atol=1e-9)
    assert_close(gram.eigvalsh(k), expected, rtol=0, atol=1e-9)
    assert_close(vectors.T @ vectors, torch.eye(k).double(), rtol=0, atol=1e-9)
    assert_close(matrix @ vectors, vectors * found, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_no_copy_is_lost(kind: str) -> None:
    """More copies than the block is wide: 40 of them, 24 columns."""
    basis, values = spectrum(300, 40, 1)
    check(KINDS[kind](basis, values), matrix_of(basis, values), values, 16)


@pytest.mark.guard
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copies", [2, 5, 25])
@pytest.mark.parametrize("seed", range(2))
def test_no_copy_is_lost_at_random(kind: str, copies: int, seed: int) -> None:
    n = 270 + 37 * seed
    basis, values = spectrum(n, copies, seed)
    for k in (2, copies, copies + 3):
        check(KINDS[kind](basis, values), matrix_of(basis, values), values, k)


@pytest.mark.parametrize("k", [2, 9, 10, 30])
def test_walsh_spectra(k: int) -> None:
    """Kernels of inner products on the Boolean cube have eigenvalues repeated binomially often: 1, 9, 36, …"""
    bits = torch.tensor([[1.0 if (i >> b) & 1 else -1.0 for b in range(9)] for i in range(512)]).double()
    matrix = ((bits @ bits.T) / 9 + 1).pow(3)
    assert_close(as_gram(matrix).eigvalsh(k), torch.linalg.eigvalsh(matrix)[-k:], rtol=0, atol=1e-7)


def test_both_ends_by_magnitude() -> None:
    basis, values = spectrum(300, 6, 3)
    values[:3] = -2.0
    found = top_eigenpairs(matrix_of(basis, values), 6, by="magnitude")[0]
    assert_close(found, torch.tensor([-2.0] * 3 + [2.0] * 3).double(), rtol=0, atol=1e-9)


def test_the_proof_sees_what_is_missing() -> None:
    basis, values = spectrum(100, 5, 0)
    matrix = matrix_of(basis, values)
    assert none_above(matrix, values[:6], basis[:, :6], "largest", 1e-9)
    lost = torch.tensor([0, 1, 2, 5, 6, 7])
    assert not none_above(matrix, values[lost], basis[:, lost], "largest", 1e-9)
    assert not none_above(-matrix, -values[lost], basis[:, lost], "smallest", 1e-9)
    assert not none_above(matrix, values[lost], basis[:, lost], "magnitude", 1e-9)


def test_what_does_not_end_is_refused() -> None:
    """A spectrum without gaps, and few passes: no answer rather than half of one."""
    basis, _ = spectrum(300, 2, 0)
    gram = KINDS["operator"](basis, 1 + 1e-9 * torch.arange(300).double())
    with pytest.raises(NumericalError, match="not every copy"):
        top_eigenpairs(gram, 5, max_iter=3)

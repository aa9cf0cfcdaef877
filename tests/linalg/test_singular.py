"""Singular values and the leading vectors against the whole decomposition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import LinAlgError
from torch import Tensor
from torch.testing import assert_close

from ntkscope.core import generator
from ntkscope.linalg.spectra.singular import SingularParts, Tridiagonal, singular_values


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "singular", *shape), dtype=torch.float64)


def check(A: Tensor, parts: SingularParts, count: int) -> None:
    """Values as `svdvals` has them; vectors orthonormal, and A takes each to the other, times its value."""
    expected = torch.linalg.svdvals(A)
    assert_close(parts.values.square(), expected.square(), rtol=0, atol=1e-13 * len(A) * float(expected[0]) ** 2)
    left, right = parts.vectors(count)
    assert (left.shape, right.shape) == ((A.shape[0], count), (A.shape[1], count))
    for one in (left, right):
        assert_close(one.T @ one, torch.eye(count, dtype=A.dtype), rtol=0, atol=1e-8)
    size = float(expected[0])
    assert_close(A @ right, left * parts.values[:count], rtol=0, atol=1e-10 * size)
    assert_close(A.T @ left, right * parts.values[:count], rtol=0, atol=1e-8 * size)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 40), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_against_svd(rows: int, columns: int, share: float, seed: int) -> None:
    A = noise(rows, columns, seed=seed)
    count = round(share * min(rows, columns) / 2)  # the larger half: the smallest are not for the Gram
    check(A, SingularParts.of(A), count)
    check(A.T, SingularParts.of(A.T), count)  # not contiguous


def test_asking_again_gives_the_same_and_more() -> None:
    A = noise(30, 50)
    parts = SingularParts.of(A)
    for count in (0, 1, 2, 3, 10, 5, 15):
        check(A, parts, count)


def test_equal_values_have_orthogonal_vectors() -> None:
    A = torch.linalg.qr(noise(40, 24))[0]
    check(A, SingularParts.of(A), 24)
    A[:, :5] *= 3
    check(A, SingularParts.of(A), 8)


@pytest.mark.parametrize("step", ["eigenvalues", "leading"])
def test_another_way_where_lapack_gives_up(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise LinAlgError(f"{step}: 1")

    monkeypatch.setattr(Tridiagonal, step, fails)
    A = noise(12, 20)
    check(A, SingularParts.of(A), 5)
    check(A.T, SingularParts.of(A.T), 5)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_small_values_keep_their_digits(scale: float) -> None:
    """Below 1e-4 of the largest the Gram would lose them; nearly dependent rows, rank one, and zero."""
    for smallest in (1.0, 1e-3, 1e-6, 1e-12):
        q, r = torch.linalg.qr(noise(60, 30))[0], torch.linalg.qr(noise(30, 30))[0]
        A = (q * torch.logspace(0, torch.tensor(smallest).log10().item(), 30, dtype=torch.float64)) @ r.T * scale
        exact = torch.linalg.svdvals(A)
        assert_close(singular_values(A), exact, rtol=1e-7 if smallest >= 1e-6 else 1e-3, atol=1e-15 * float(exact[0]))
    assert singular_values(torch.zeros(3, 4, dtype=torch.float64)).tolist() == [0, 0, 0]
    assert singular_values(torch.ones(1, 4, dtype=torch.float64)).tolist() == pytest.approx([2.0])

"""The three Grams of this room against the contract, and what each promises beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from contracts.gram import GramContract, features
from ntkscope.core import UsageError
from ntkscope.linalg import DenseGram, FactoredGram, Gram, OperatorGram, as_gram


class TestDense(GramContract):
    def make(self, left: Tensor, right: Tensor | None = None, **labels: Any) -> Gram:
        values = left @ (left if right is None else right).T
        return DenseGram((values + values.T) / 2 if right is None else values, symmetric=right is None, **labels)


class TestFactored(GramContract):
    def make(self, left: Tensor, right: Tensor | None = None, **labels: Any) -> Gram:
        return FactoredGram(left, right, **labels)


class TestOperator(GramContract):
    picklable = False

    def make(self, left: Tensor, right: Tensor | None = None, **labels: Any) -> Gram:
        other = left if right is None else right
        return OperatorGram(
            (len(left), len(other)),
            lambda v: left @ (other.T @ v),
            None if right is None else lambda v: other @ (left.T @ v),
            dtype=left.dtype,
            symmetric=right is None,
            **labels,
        )


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 12),
    m=st.integers(0, 12),
    p=st.integers(1, 15),
    symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**20),
)
def test_factored_equals_dense(n: int, m: int, p: int, symmetric: bool, dtype: torch.dtype, seed: int) -> None:
    left, right = features(n, p, seed=seed, dtype=dtype), features(m, p, seed=seed + 1, dtype=dtype)
    right = left if symmetric else right
    values = left @ right.T
    dense = DenseGram(
        (values + values.T) / 2 if symmetric else values,
        symmetric=symmetric,
        row_diagonal=left.square().sum(1),
        column_diagonal=right.square().sum(1),
    )
    factored = FactoredGram(left, None if symmetric else right)
    # p products of numbers near 1, each off by a rounding unit
    close = {"rtol": 1e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    v = features(len(right), 3, seed=seed + 2, dtype=dtype)
    assert_close(factored.dense(), dense.dense(), **close)
    assert_close(factored @ v, dense @ v, **close)
    assert_close(factored.row_diagonal, dense.row_diagonal, **close)
    assert_close(factored.column_diagonal, dense.column_diagonal, **close)
    assert_close(factored.normalized().dense(), dense.normalized().dense(), **close)
    assert_close(factored.T.dense(), dense.T.dense(), **close)
    if symmetric:
        assert_close(factored.eigvalsh(), dense.eigvalsh(), rtol=1e-5, atol=close["atol"] * max(1, n) * 10)


@contextmanager
def memory_for(gigabytes: float) -> Iterator[None]:
    """Let this process map that much more memory than it has now, and no more."""
    resource = pytest.importorskip("resource")
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("needs /proc to know what is mapped now")
    mapped = int(status.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + int(gigabytes * 1e9), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_factored_never_forms_the_product() -> None:
    """120,000 × 120,000 in float32 is 57.6 GB; all of this runs where 1 GB more may be mapped, and `dense()` cannot."""
    n, p = 120_000, 4
    left = features(n, p, dtype=torch.float32)
    expected = left.double() @ left.double().sum(0)
    with memory_for(1.0):
        gram = FactoredGram(left)
        v = torch.ones(n)
        assert_close((gram @ v).double(), expected, rtol=1e-4, atol=1e-2)  # sums of 120,000 float32
        cosine = gram.normalized()
        assert torch.equal(cosine.diagonal(), torch.ones(n))
        tile = next(iter(cosine.tiles()))[2]
        assert torch.equal(tile.diagonal(), torch.ones(len(tile)))
        assert gram.eigvalsh().shape == (n,)
        assert_close(gram.eigvalsh(2), gram.eigvalsh()[-2:])
        assert_close(gram[[5, 100_000], 7:9].dense(), left[[5, 100_000]] @ left[7:9].T)
        cross = FactoredGram(left, left.flip(0))
        assert_close((cross.T @ v).double(), expected.flip(0), rtol=1e-4, atol=1e-2)
        assert cross.normalized().shape == (n, n)
        with pytest.raises(RuntimeError, match="allocate"):
            gram.dense()


def test_operator_forms_a_panel_at_a_time() -> None:
    widths: list[int] = []

    def multiply(v: Tensor) -> Tensor:
        widths.append(v.shape[1])
        return 2 * v

    gram = OperatorGram((600, 600), multiply, symmetric=True)
    assert_close(gram.dense(), 2 * torch.eye(600))
    assert sum(widths) == 600
    assert max(widths) <= 256
    widths.clear()
    list(gram.tiles(100))
    assert sum(widths) == 600


def test_operator_without_its_transpose_says_so() -> None:
    gram = OperatorGram((2, 3), lambda v: v[:2])
    with pytest.raises(UsageError, match="rmatmul="):
        gram.T  # noqa: B018
    with pytest.raises(UsageError, match="row_diagonal="):
        gram.normalized()
    with pytest.raises(UsageError, match="column_diagonal="):
        OperatorGram((2, 3), lambda v: v[:2], diagonal=torch.ones(2))
    with pytest.raises(UsageError, match="gave shape"):
        OperatorGram((2, 3), lambda v: v) @ torch.ones(3)


def test_factored_refuses_factors_that_do_not_fit() -> None:
    for left, right in (
        (torch.ones(2, 3), torch.ones(2, 4)),
        (torch.ones(2), None),
        (torch.ones(2, 3).double(), torch.ones(2, 3)),
    ):
        with pytest.raises(UsageError, match="expected"):
            FactoredGram(left, right)
    with pytest.raises(UsageError, match="symmetric=True"):
        FactoredGram(torch.ones(2, 3), torch.ones(2, 3), symmetric=True)


def test_factored_moves_to_more_digits() -> None:
    left = features(5, 300, dtype=torch.float32)
    assert_close(FactoredGram(left).to(torch.float64).diagonal(), left.double().square().sum(1), rtol=1e-14, atol=0)


class TestAsGram:
    def test_takes_arrays_of_every_kind(self) -> None:
        values = np.array([[2.0, 1.0], [1.0, 3.0]])
        read_only = values.copy()
        read_only.flags.writeable = False
        for given_values in (
            values,
            read_only,
            values[::-1, ::-1],
            values.astype(np.float32),
            values.astype(int),
            torch.tensor(values),
        ):
            gram = as_gram(given_values)
            assert gram.symmetric
            assert gram.dtype.is_floating_point
        assert as_gram(gram) is gram
        assert not as_gram(np.array([[1.0, 2.0], [0.0, 1.0]])).symmetric
        assert not as_gram(np.eye(2), symmetric=False).symmetric
        assert as_gram(np.zeros((0, 0))).symmetric

    def test_symmetry_is_checked_when_asked(self) -> None:
        with pytest.raises(UsageError, match="not symmetric"):
            as_gram(np.array([[1.0, 2.0], [2.1, 1.0]]), symmetric=True)
        with pytest.raises(UsageError, match="not symmetric"):
            as_gram(np.ones((2, 3)), symmetric=True)
        with pytest.raises(UsageError, match="x2=None"):
            as_gram(DenseGram(torch.ones(2, 2)), symmetric=True)
        nearly = as_gram(np.array([[1.0, 2.0], [2.0 + 1e-9, 1.0]]), symmetric=True)
        assert nearly.symmetric
        assert torch.equal(nearly.dense(), nearly.dense().T)


def test_a_subclass_is_abstract_or_final() -> None:
    assert Gram.__abstractmethods__
    for kind in (DenseGram, FactoredGram, OperatorGram):
        assert kind.__final__
        overridden = set(vars(kind)) & {name for name in vars(Gram) if not name.startswith("_")}
        assert not overridden, f"{kind.__name__} overrides {overridden}"

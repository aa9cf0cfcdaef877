"""The Gram of a store against the contract, and what it promises beyond it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from contracts.gram import GramContract, features
from ntkscope.core.errors import StoreError
from ntkscope.linalg import DenseGram, Gram
from ntkscope.storage import KernelStore, TiledGram, fill, open_kernel
from oracles.tiles import Products


class TestTiled(GramContract):
    """In memory, so that hundreds of tiny stores need not reach a disk; `test_store` has the same on one."""

    @pytest.fixture(autouse=True)
    def _urls(self, tmp_path: Path) -> Iterator[None]:
        self.urls = (f"memory:/{tmp_path}/{k}" for k in itertools.count())
        yield
        fsspec.filesystem("memory").rm(str(tmp_path), recursive=True)

    def make(self, left: Tensor, right: Tensor | None = None, **labels: Any) -> Gram:
        """An empty one has no tiles to store: it is a choice of nothing from one that has."""
        padded = [
            None if side is None else side if len(side) else torch.ones(1, side.shape[1]).to(side)
            for side in (left, right)
        ]
        source = Products(padded[0], padded[1], size=max(2, len(padded[0]) // 3))
        store = KernelStore.prepare(next(self.urls), source)
        fill(store, source)
        if len(left) and (right is None or len(right)):
            return TiledGram(store, **labels)
        return TiledGram(store)[: len(left), : len(left if right is None else right)]


def tiled(url: str | Path, source: Products) -> TiledGram:
    store = KernelStore.prepare(url, source)
    fill(store, source)
    gram = open_kernel(url)
    assert isinstance(gram, TiledGram)
    return gram


def peak() -> int:
    """The most resident bytes since `reset_peak`, from the kernel's own count."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def reset_peak() -> int:
    """Begin a new count; the resident bytes now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's count of resident memory")
def test_products_hold_a_few_tiles(tmp_path: Path) -> None:
    """6,000 × 6,000 in float32 is 144 MB, a tile 1 MB; five products with float64 vectors stay within 10 tiles."""
    n, size = 6000, 500
    left = features(n, 2, dtype=torch.float32)
    gram = tiled(tmp_path / "k", Products(left, size=size))
    v = features(n, 5, seed=1)
    gram[:size, :size] @ v[:size]  # what is allocated once
    before = reset_peak()
    results = [view @ w for view, w in views(gram, v)]
    assert peak() - before < 10 * size * size * 4
    wide = left.double()
    expected = wide @ (wide.T @ v)
    assert_close(results[0], expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))  # entries are float32


def views(gram: Gram, v: Tensor) -> Iterator[tuple[Gram, Tensor]]:
    yield gram, v
    yield gram.normalized(), v
    yield gram[::2], v
    yield gram[torch.arange(0, len(gram), 3), 10:], v[10:]
    yield gram[:, 100:2000].T, v


def test_each_stored_tile_is_read_once_a_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gram = tiled(tmp_path / "k", Products(features(20, 3), size=6))
    read: list[tuple[int, int]] = []
    original = KernelStore.read

    def noting(store: KernelStore, i: int, j: int) -> Tensor:
        read.append((i, j))
        return original(store, i, j)

    monkeypatch.setattr(KernelStore, "read", noting)
    for act in (
        lambda: gram @ torch.ones(20, dtype=torch.float64),
        gram.dense,
        lambda: list(gram.tiles()),
        lambda: list(gram.normalized().tiles()),
        lambda: gram[torch.randperm(20)] @ torch.ones(20, dtype=torch.float64),
        lambda: gram[torch.randperm(20)].T.dense(),
    ):
        read.clear()
        act()
        assert sorted(read) == list(gram.store.grid)
    read.clear()
    gram[:6, 6:12].dense()
    gram[7:9] @ torch.zeros(20, dtype=torch.float64)
    assert sorted(read) == [(0, 1), (0, 1), (1, 1), (1, 2), (1, 3)]


def test_sums_are_in_float64(tmp_path: Path) -> None:
    """Ones in float32: a running float32 sum of 2²⁴ + 1 more ones would stand still; tile sums added in float64 do not."""
    left = torch.ones(3, 1)
    left[0] = 4096.0
    gram = tiled(tmp_path / "k", Products(left, size=1))
    assert (gram @ torch.ones(3, dtype=torch.float64))[0].item() == 4096.0**2 + 2 * 4096
    big = torch.tensor([[2.0**24, 1.0, 1.0]])
    row = tiled(tmp_path / "r", Products(torch.ones(1, 1), big.T.contiguous(), size=1))
    assert (row @ torch.ones(3)).item() == 2.0**24 + 2


@settings(max_examples=25)
@given(
    n=st.integers(1, 10),
    m=st.integers(1, 10),
    size=st.integers(1, 5),
    symmetric=st.booleans(),
    seed=st.integers(0, 2**20),
    data=st.data(),
)
@pytest.mark.nightly
def test_views_of_views_equal_dense_ones(
    n: int, m: int, size: int, symmetric: bool, seed: int, data: st.DataObject
) -> None:
    """Any chain of choices, transposes and normalisations is the same on disk as in memory."""
    left, right = features(n, 3, seed=seed), None if symmetric else features(m, 3, seed=seed + 1)
    url = f"memory://views/{n}-{m}-{size}-{symmetric}-{seed}"
    gram: Gram = tiled(url, Products(left, right, size=size))
    values = left @ (left if right is None else right).T
    dense: Gram = DenseGram(
        (values + values.T) / 2 if symmetric else values,
        symmetric=symmetric,
        row_diagonal=left.square().sum(1),
        column_diagonal=None if right is None else right.square().sum(1),
    )
    for step in data.draw(st.lists(st.sampled_from(["choose", "turn", "normalize", "both"]), max_size=4)):
        if step == "turn":
            gram, dense = gram.T, dense.T
        elif step == "normalize":
            gram, dense = gram.normalized(), dense.normalized()
        elif step == "both" and gram.symmetric:
            rows = data.draw(choices(gram.shape[0]))
            gram, dense = gram[rows, rows], dense[rows, rows]
        else:
            rows, columns = (data.draw(choices(s)) for s in gram.shape)
            gram, dense = gram[rows, columns], dense[rows, columns]
    assert gram.symmetric == dense.symmetric
    v = features(gram.shape[1], 2, seed=seed + 2)
    assert_close(gram.dense(), dense.dense())
    assert_close(gram @ v, dense @ v)
    assert_close(torch.from_numpy(gram.to_dask().compute()), gram.dense(), rtol=0, atol=0)  # type: ignore[attr-defined]
    for piece in (None, 2):
        formed = torch.full(gram.shape, torch.nan, dtype=torch.float64)
        for rows, columns, tile in gram.tiles(piece):
            formed[rows, columns] = tile
        assert_close(formed, gram.dense(), rtol=0, atol=0)


def choices(size: int) -> st.SearchStrategy[slice | list[int]]:
    starts = st.integers(0, max(0, size - 1))
    slices = st.builds(slice, starts, st.integers(1, size + 2), st.integers(1, 3))
    return slices if size == 0 else slices | st.lists(st.integers(0, size - 1), min_size=1, max_size=6)


class TestDask:
    def test_blocks_are_tiles_and_nothing_is_read_before_computing(self, tmp_path: Path) -> None:
        gram = tiled(tmp_path / "k", Products(features(20, 3, dtype=torch.float32), size=6))
        array = gram.to_dask()
        assert array.chunks == ((6, 6, 6, 2), (6, 6, 6, 2))
        assert array.dtype == np.float32
        gram.store.drop(0, 1)
        with pytest.raises(StoreError, match=r"tile \(0, 1\)"):
            array.compute()
        expected = gram.store.read(2, 3).numpy()
        np.testing.assert_array_equal(array[12:18, 18:].compute(), expected)
        np.testing.assert_array_equal(array[18:, 12:18].compute(), expected.T)

    def test_it_computes(self, tmp_path: Path) -> None:
        gram = tiled(tmp_path / "k", Products(features(20, 3), features(11, 3), size=6))
        np.testing.assert_allclose(gram.to_dask().sum(axis=0).compute(), gram.dense().sum(0).numpy(), rtol=1e-12)
        normalized: Any = gram.normalized()
        np.testing.assert_allclose(normalized.to_dask().mean().compute(), normalized.dense().mean().item(), rtol=1e-12)


def test_an_error_while_reading_ahead_arrives(tmp_path: Path) -> None:
    gram = tiled(tmp_path / "k", Products(features(20, 3), size=6))
    gram.store.drop(1, 3)
    threads = threading.active_count()
    for act in (lambda: gram @ torch.ones(20, dtype=torch.float64), gram.dense, lambda: list(gram.tiles(4))):
        with pytest.raises(StoreError, match=r"tile \(1, 3\)"):
            act()
    next(iter(gram.tiles()))  # left in the middle
    assert threading.active_count() <= threads

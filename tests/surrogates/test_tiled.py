"""Surrogates and explanations on a kernel out of core: nothing formed, passes counted, the numbers of the dense kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.counted import CountedGram, Formed
from contracts.surrogate import blobs, radial
from ntkscope.core import UsageError
from ntkscope.explain import attribute, nearest
from ntkscope.linalg import Gram
from ntkscope.linalg.spectra import band
from ntkscope.storage import KernelStore, TiledGram, fill, open_kernel
from ntkscope.surrogates import KernelGLM, KernelNeighbors, KernelRidge, KernelRidgeClassifier
from oracles.tiles import Products

N, TEST, CLASSES = 450, 40, 3


def kernels(n: int = N, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training kernel, labels, test kernel, test labels."""
    x, y = blobs(n + TEST, CLASSES, noise=2.0)
    return radial(x[:n], x[:n]).astype(dtype), y[:n], radial(x[n:], x[:n]).astype(dtype), y[n:]


def counted(K: np.ndarray) -> CountedGram:
    return CountedGram(torch.from_numpy(K), size=64)


class TestGLM:
    @pytest.mark.parametrize("options", [{}, {"multi_class": "ovr"}])
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_the_fit_of_the_dense_kernel_in_tens_of_passes(self, options: dict[str, object], dtype: type) -> None:
        K, y, K_test, _ = kernels(dtype=dtype)
        gram = counted(K)
        glm = KernelGLM(**options).fit(gram, y)
        assert glm.converged_
        assert glm.n_passes_ == gram.log["passes"]
        assert glm.n_passes_ < 60
        columns = set(gram.log["columns"])
        assert columns <= {1, CLASSES, 128 + 16}  # all classes in each product
        dense = KernelGLM(**options).fit(K, y)
        np.testing.assert_allclose(glm.logits(counted(K_test)), dense.logits(K_test), atol=1e-5)

    def test_passes_do_not_grow_with_the_classes(self) -> None:
        K, _, _, _ = kernels()
        few, many = (KernelGLM(rank=64).fit(counted(K), np.arange(N) % c).n_passes_ for c in (2, 12))
        assert many < 2 * few

    def test_leading_directions_save_passes(self) -> None:
        """What the preconditioner is for: the same optimum with fewer of them takes several times the passes."""
        K, y, _, _ = kernels()
        with_few, with_many = (KernelGLM(rank=rank).fit(counted(K), y) for rank in (32, 128))
        assert with_many.n_passes_ < with_few.n_passes_ / 2
        np.testing.assert_allclose(with_few.loss_, with_many.loss_, rtol=1e-6)

    def test_leave_one_out(self) -> None:
        K, y, _, _ = kernels()
        gram = counted(K)
        glm = KernelGLM(rank=64).fit(gram, y)
        before = gram.log["passes"]
        np.testing.assert_allclose(glm.leave_one_out(gram), glm.leave_one_out(K), atol=1e-6)
        assert gram.log["passes"] - before <= 6


class TestRidge:
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("preconditioner", ["nystrom", "block-jacobi", "none"])
    def test_the_fit_of_the_dense_kernel(self, preconditioner: str, weighted: bool) -> None:
        K, y, K_test, _ = kernels()
        weights = np.linspace(0, 2, N) if weighted else None
        targets = np.eye(CLASSES)[y]
        gram = counted(K)
        ridge = KernelRidge(0.1, preconditioner=preconditioner, rank=64).fit(gram, targets, weights)
        dense = KernelRidge(0.1).fit(K, targets, weights)
        assert dense.n_passes_ == 0
        np.testing.assert_allclose(ridge.predict(counted(K_test)), dense.predict(K_test), atol=1e-6)
        assert ridge.converged_
        assert ridge.n_passes_ == gram.log["passes"]
        if preconditioner == "nystrom":
            assert ridge.n_passes_ < 50
            assert max(gram.log["columns"]) == 64

    def test_all_outputs_share_each_pass(self) -> None:
        K, y, _, _ = kernels()
        one, many = counted(K), counted(K)
        KernelRidge(0.1).fit(one, (y == 0).astype(float))
        KernelRidge(0.1).fit(many, np.eye(CLASSES)[y])
        assert many.log["passes"] <= one.log["passes"] + 5

    def test_the_classifier(self) -> None:
        K, y, K_test, y_test = kernels()
        ridge = KernelRidgeClassifier(0.1).fit(counted(K), y)
        assert ridge.score(counted(K_test), y_test) == KernelRidgeClassifier(0.1).fit(K, y).score(K_test, y_test)

    def test_without_ridge_it_is_formed_or_refused(self) -> None:
        K, y, _, _ = kernels()
        with pytest.raises(Formed):
            KernelRidge(0).fit(counted(K), y.astype(float))
        with pytest.raises(UsageError, match="alpha=0"):
            KernelRidge(0, solver="cg").fit(counted(K), y.astype(float))

    def test_leave_one_out_of_what_is_too_large_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        K, y, _, _ = kernels(100)
        ridge = KernelRidgeClassifier(0.1).fit(counted(K), y)
        monkeypatch.setattr(band, "LAPACK_ROWS", 99)
        with pytest.raises(UsageError, match=r"KernelGLM\.leave_one_out"):
            ridge.leave_one_out(counted(K))


class TestExplanations:
    def test_attribution_of_a_few_items_reads_their_rows(self) -> None:
        K, y, K_test, _ = kernels()
        glm = KernelGLM(rank=64).fit(K, y)
        gram = counted(K_test)
        found = attribute(glm, gram, rows=[3, 17])
        whole = attribute(glm, K_test)
        np.testing.assert_allclose(found.item(1), whole.item(17), atol=1e-12)
        assert gram.log["entries"] == N  # one row
        np.testing.assert_allclose(found.sums(), glm.logits(K_test)[[3, 17]], atol=1e-10)

    def test_neighbours_by_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        K, y, K_test, _ = kernels()
        monkeypatch.setattr("ntkscope.explain.examples.BLOCK", 8 * N)
        np.testing.assert_array_equal(nearest(counted(K_test), 4).indices, nearest(K_test, 4).indices)
        monkeypatch.setattr("ntkscope.surrogates.neighbors.ROWS", 8)
        gram, model = counted(K_test), KernelNeighbors(k=5).fit(counted(K), y)
        np.testing.assert_array_equal(model.predict(gram), KernelNeighbors(k=5).fit(K, y).predict(K_test))


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Gram, Gram, np.ndarray, np.ndarray]:
    """A real store of float32 tiles, trained and test; forming either is an error."""
    x, y = blobs(N + TEST, CLASSES, noise=2.0)
    rows = np.concatenate([x, np.ones((len(x), 1))], 1)
    left = torch.from_numpy(np.concatenate([rows, rows**2, np.sin(rows * 2)], 1)).float()
    grams = []
    for name, rows_, columns in (("train", left[:N], None), ("test", left[N:], left[:N])):
        source = Products(rows_, columns, size=100)
        store = KernelStore.prepare(tmp_path / name, source)
        fill(store, source)
        grams.append(open_kernel(tmp_path / name).normalized())
    form = TiledGram._form

    def few(self: TiledGram) -> torch.Tensor:
        if self.shape[0] * self.shape[1] > 50 * N:
            raise Formed(f"{self!r} was formed")
        return form(self)

    monkeypatch.setattr(TiledGram, "_form", few)
    return grams[0], grams[1], y[:N], y[N:]


def test_an_attribution_reads_the_tiles_of_its_row(
    stored: tuple[Gram, Gram, np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    K, K_test, y, _ = stored
    found = attribute(KernelGLM(rank=32).fit(K, y), K_test)
    seen, read = [], KernelStore.read

    def counted(store: KernelStore, i: int, j: int) -> torch.Tensor:
        seen.append((i, j))
        return read(store, i, j)

    monkeypatch.setattr(KernelStore, "read", counted)
    found.item(7)
    assert sorted(seen) == [(0, j) for j in range(5)]  # 450 columns in tiles of 100


def test_everything_on_a_real_store(stored: tuple[Gram, Gram, np.ndarray, np.ndarray]) -> None:
    K, K_test, y, y_test = stored
    with pytest.raises(Formed):
        K.dense()
    dense, dense_test = _by_tiles(K), _by_tiles(K_test)
    glm, same = KernelGLM(rank=32).fit(K, y), KernelGLM(rank=32).fit(dense, y)
    np.testing.assert_allclose(glm.logits(K_test), same.logits(dense_test), atol=1e-4)
    assert glm.n_passes_ < 40
    ridge, solved = KernelRidgeClassifier(0.1, rank=32).fit(K, y), KernelRidgeClassifier(0.1).fit(dense, y)
    np.testing.assert_allclose(ridge.logits(K_test), solved.logits(dense_test), atol=1e-4)
    np.testing.assert_allclose(attribute(glm, K_test).item(2).sum(0), glm.logits(K_test)[2], atol=1e-9)
    assert glm.score(K_test, y_test) > 0.6


def _by_tiles(gram: Gram) -> torch.Tensor:
    values = torch.empty(gram.shape, dtype=gram.dtype)
    for rows, columns, tile in gram.tiles():
        values[rows, columns] = tile
    return values

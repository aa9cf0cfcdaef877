"""What a kernel that does not fit can be asked: counted passes, nothing formed, the same answers as dense float64 algebra."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from contracts.counted import CountedGram, Formed
from contracts.gram import GramContract, features
from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import (
    DenseGram,
    FactoredGram,
    Gram,
    block_jacobi,
    cholesky_solve,
    conjugate_gradient,
    eigenpairs,
    estimate_effective_rank,
    jacobi,
    minimum_norm_solve,
    nystrom,
    spectral_density,
    top_eigenpairs,
)
from ntkscope.linalg.grams.corrected import CorrectedGram
from ntkscope.linalg.spectra import band
from ntkscope.linalg.spectra.band import band_eigenvalues
from ntkscope.linalg.spectra.block_lanczos import block_eigenpairs
from ntkscope.storage import KernelStore, TiledGram, fill, open_kernel
from oracles.tiles import Products
from strategies.matrices import random


def root(n: int, seed: int = 0) -> Tensor:
    """Features whose kernel is shaped as a tangent kernel's: one large eigenvalue, then three decades of decay."""
    basis = torch.linalg.qr(random(n, n, seed=seed)).Q
    values = torch.cat([torch.tensor([0.5 * n]), 0.05 * n * torch.logspace(0, -3, n - 1)]).double()
    return basis * values.sqrt()


def tangent_like(n: int, seed: int = 0) -> Tensor:
    matrix = root(n, seed) @ root(n, seed).T
    return (matrix + matrix.T) / 2


@pytest.fixture(params=["counted", "tiled"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Makes a kernel out of core from its features, of the test's own kind or in a real store; neither can be formed."""

    def make(left: Tensor) -> Gram:
        if request.param == "counted":
            matrix = left @ left.T
            return CountedGram((matrix + matrix.T) / 2)
        source = Products(left, size=75)
        store = KernelStore.prepare(tmp_path / "kernel", source)
        fill(store, source)
        gram = open_kernel(tmp_path / "kernel")
        form = TiledGram._form

        def few(self: TiledGram) -> Tensor:
            if self.shape[0] * self.shape[1] > 80 * max(gram.shape):
                raise Formed(f"{self!r} was formed")
            return form(self)

        monkeypatch.setattr(TiledGram, "_form", few)
        return gram

    return make


class TestTheWitness:
    """What the tests below rest on can fail."""

    def test_forming_is_caught(self, opened) -> None:  # type: ignore[no-untyped-def]
        gram = opened(root(150))
        for act in (gram.dense, gram.numpy, lambda: np.asarray(gram), lambda: cholesky_solve(gram, torch.ones(150))):
            with pytest.raises(Formed):
                act()
        assert gram[[3]].dense().shape == (1, 150)

    def test_passes_are_counted(self) -> None:
        gram = CountedGram(tangent_like(100))
        gram @ random(100, 5)
        list(gram.tiles())
        assert (gram.log["passes"], gram.log["columns"], gram.log["entries"]) == (2, [5], 2 * 100 * 100)


class TestEigenpairs:
    @pytest.mark.parametrize("k", [1, 10])
    def test_largest_in_few_passes(self, opened, k: int) -> None:  # type: ignore[no-untyped-def]
        left = root(300)
        gram, matrix = opened(left), left @ left.T
        exact = torch.linalg.eigvalsh(matrix)
        assert_close(gram.eigvalsh(k), exact[-k:], rtol=0, atol=1e-12 * float(exact[-1]))
        values, vectors = eigenpairs(gram, k)
        assert_close(matrix @ vectors, vectors * values, rtol=0, atol=1e-10 * float(exact[-1]))
        assert_close(vectors.T @ vectors, torch.eye(k).double(), rtol=0, atol=1e-12)
        if isinstance(gram, CountedGram):
            assert gram.log["passes"] <= 2 * 20  # some eight of them look for copies that were missed

    @settings(max_examples=40, deadline=None)
    @given(
        n=st.integers(1, 60),
        rank=st.integers(0, 60),
        k=st.integers(1, 12),
        block=st.sampled_from([None, 1, 3]),
        end=st.sampled_from(["largest", "smallest", "magnitude"]),
        seed=st.integers(0, 100),
    )
    def test_any_matrix_any_end(self, n: int, rank: int, k: int, block: int | None, end: str, seed: int) -> None:
        """Low rank, indefinite, repeated eigenvalues, blocks narrower than what is asked for."""
        k, rank = min(n, k), min(rank, n)
        signs = torch.where(torch.arange(rank) % 3 == 0, -1.0, 1.0).double()
        left = random(n, rank, seed=seed)
        matrix = left @ torch.diag(signs) @ left.T
        matrix = (matrix + matrix.T) / 2
        found = block_eigenpairs(matrix, k, end=end, block=block, seed=seed, max_passes=400)
        exact = torch.linalg.eigvalsh(matrix)
        order = {"largest": -exact, "smallest": exact, "magnitude": -exact.abs()}[end].argsort()
        scale = max(float(exact.abs().max()), 1e-300)
        assert found.converged
        if end == "magnitude":
            assert_close(
                found.values.abs().sort().values, exact[order[:k]].abs().sort().values, rtol=0, atol=1e-9 * scale
            )
        else:
            assert_close(found.values, exact[order[:k]].sort().values, rtol=0, atol=1e-9 * scale)
        assert_close(found.vectors.T @ found.vectors, torch.eye(k).double(), rtol=0, atol=1e-10)
        gap = matrix @ found.vectors - found.vectors * found.values
        assert_close(torch.linalg.vector_norm(gap, dim=0), found.residuals, rtol=0, atol=1e-12 * scale)

    def test_an_invariant_subspace_smaller_than_asked_for(self) -> None:
        found = block_eigenpairs(torch.eye(300).double(), 200, block=16)
        assert found.converged
        assert_close(found.values, torch.ones(200).double())

    def test_running_out_of_passes_is_said(self) -> None:
        gram = CountedGram(torch.diag(1 + 1e-9 * torch.arange(300).double()))
        found = block_eigenpairs(gram, 3, max_passes=4)
        assert (found.passes, found.converged) == (4, False)
        with pytest.raises(NumericalError, match=r"after 4 passes .* raise max_iter"):
            top_eigenpairs(gram, 3, max_iter=4)

    def test_nan_and_nonsense_are_refused(self) -> None:
        with pytest.raises(NumericalError, match="NaN"):
            top_eigenpairs(CountedGram(torch.full((100, 100), torch.nan), symmetric=True), 1)
        with pytest.raises(UsageError, match="from 1 to 5"):
            block_eigenpairs(torch.eye(5), 6)


class TestAllEigenvalues:
    @pytest.mark.parametrize("in_memory", [True, False])
    @settings(max_examples=15, deadline=None)
    @given(
        n=st.integers(1, 50),
        p=st.integers(1, 60),
        width=st.integers(1, 16),
        strip=st.integers(1, 40),
        seed=st.integers(0, 100),
    )
    def test_the_band_has_the_eigenvalues(
        self, in_memory: bool, n: int, p: int, width: int, strip: int, seed: int
    ) -> None:
        left = random(n, p, seed=seed)
        values = band_eigenvalues(FactoredGram(left), width=width, strip=strip, in_memory=in_memory)
        exact = torch.linalg.eigvalsh(left @ left.T)
        assert_close(values, exact, rtol=0, atol=1e-13 * n * float(exact[-1]))  # both are backward stable

    def test_beyond_lapack_the_same_numbers_come_by_themselves(self, opened, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        left = root(150)
        exact = torch.linalg.eigvalsh(left @ left.T)
        gram = opened(left)
        with pytest.raises(Formed):
            gram.eigvalsh()
        monkeypatch.setattr(band, "LAPACK_ROWS", 149)
        monkeypatch.setattr(band, "STRIP", 64)
        for kernel in (gram, DenseGram(left @ left.T, symmetric=True), FactoredGram(left)):
            assert_close(kernel.eigvalsh(), exact, rtol=0, atol=1e-12 * float(exact[-1]))
            assert_close(kernel.eigvalsh(150), exact, rtol=0, atol=1e-12 * float(exact[-1]))
        found = spectral_density(gram, method="exact", width=1.0)
        assert_close(found.density, spectral_density(left @ left.T, method="exact", width=1.0, grid=found.grid).density)

    def test_memory_decides_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left, written, write = root(80), [], band.InFiles.__setitem__

        def spied(self: band.InFiles, j: int, values: Tensor) -> None:
            written.append(j)
            write(self, j, values)

        monkeypatch.setattr(band, "available_bytes", lambda device: 8 * 80**2 - 1)
        monkeypatch.setattr(band.InFiles, "__setitem__", spied)
        assert len(FactoredGram(left[:, :10]).eigvalsh()) == 80  # ten features: a 10 × 10 matrix is decomposed
        assert not written
        exact = torch.linalg.eigvalsh(left @ left.T)
        assert_close(FactoredGram(left).eigvalsh(), exact, rtol=0, atol=1e-12 * float(exact[-1]))
        assert written

    def test_no_room_for_scratch_is_said_before_anything_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(band.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1))
        gram = CountedGram(tangent_like(60))
        with pytest.raises(UsageError, match=r"scratch space.*TMPDIR.*eigvalsh\(k=….*spectral_density"):
            band_eigenvalues(gram, in_memory=False)
        assert gram.log["passes"] == 0

    def test_scratch_files_go_away(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(band.tempfile, "tempdir", str(tmp_path))
        band_eigenvalues(FactoredGram(root(40)), in_memory=False)
        assert os.listdir(tmp_path) == []

    def test_each_entry_is_read_once(self) -> None:
        gram = CountedGram(tangent_like(128))
        band_eigenvalues(gram, width=8, strip=32)
        assert gram.log["entries"] <= 128 * (128 + 32) / 2  # the lower triangle and the diagonal strips' other half

    def test_nan_and_nonsense_are_refused(self) -> None:
        with pytest.raises(NumericalError, match="NaN"):
            band_eigenvalues(DenseGram(torch.full((3, 3), torch.nan), symmetric=True))
        with pytest.raises(UsageError, match="symmetric"):
            band_eigenvalues(DenseGram(torch.ones(2, 3)))
        with pytest.raises(UsageError, match="at least 1"):
            band_eigenvalues(FactoredGram(torch.ones(2, 2)), width=0)

    def test_decompositions_that_form_say_what_else_there_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for solve in (lambda K: eigenpairs(K), lambda K: minimum_norm_solve(K, torch.ones(40_000))):
            with pytest.raises(UsageError, match=r"32766 rows.*conjugate_gradient"):
                solve(FactoredGram(torch.ones(40_000, 1)))
        with pytest.raises(UsageError, match=r"46340 rows"):
            cholesky_solve(FactoredGram(torch.ones(50_000, 1)), torch.ones(50_000))


@pytest.mark.nightly
class TestEstimates:
    def test_effective_rank_counts_its_passes(self, opened) -> None:  # type: ignore[no-untyped-def]
        gram = opened(root(300))
        found = estimate_effective_rank(gram, steps=20)
        assert found.passes <= 35
        assert float(found) == found.value
        if isinstance(gram, CountedGram):
            assert found.passes == gram.log["passes"]
        with_none = estimate_effective_rank(gram, steps=20, deflate=0)
        assert found.standard_error < 0.2 * with_none.standard_error  # what deflation is for

    def test_effective_rank_of_simple_kernels(self) -> None:
        assert estimate_effective_rank(torch.eye(50)).value == pytest.approx(50)
        v = random(50, 1)
        assert estimate_effective_rank(v @ v.T).value == pytest.approx(1, abs=1e-6)
        with pytest.raises(NumericalError, match="undefined"):
            estimate_effective_rank(torch.zeros(20, 20))


class TestSystems:
    @pytest.mark.parametrize("make", [None, jacobi, block_jacobi, nystrom])
    def test_solved_by_products(self, opened, make) -> None:  # type: ignore[no-untyped-def]
        left = root(150)
        gram, targets = opened(left), random(150, 4, seed=1)
        helper = None if make is None else make(gram, 0.3) if make is not block_jacobi else make(gram, 0.3, size=30)
        before = gram.log["passes"] if isinstance(gram, CountedGram) else 0
        found = conjugate_gradient(gram, targets, 0.3, helper)
        assert found.converged
        assert_close(found.solution, cholesky_solve(left @ left.T, targets, 0.3).solution, rtol=1e-5, atol=1e-6)
        if isinstance(gram, CountedGram):
            assert gram.log["passes"] - before == found.passes == found.iterations + 1

    def test_block_jacobi_reads_the_diagonal_blocks_alone(self) -> None:
        gram = CountedGram(tangent_like(300))
        block_jacobi(gram, 0.1, size=30)
        assert (gram.log["passes"], gram.log["entries"]) == (0, 300 * 30)

    def test_nystrom_of_a_kernel_rounded_below_its_dtype(self) -> None:
        """Entries of seven digits in float64: the approximation is indefinite by rounding, not by nature."""
        left = random(300, 4)
        rounded = (left @ left.T).float().double()
        gram = DenseGram((rounded + rounded.T) / 2, symmetric=True)
        assert conjugate_gradient(gram, random(300, seed=1), 1e-2, nystrom(gram, 1e-2)).converged


class TestCorrected(GramContract):
    """A Gram and a correction of rank one that together are the matrix."""

    def make(self, left: Tensor, right: Tensor | None = None, **labels) -> Gram:  # type: ignore[no-untyped-def]
        other = left if right is None else right
        base = DenseGram(2 * (left[:, 1:] @ other[:, 1:].T), symmetric=right is None)
        halves = (left[:, 1:] * 0.5).repeat(1, 2)  # takes half of the base away again, in two steps
        others = other[:, 1:].repeat(1, 2)
        columns, weights = torch.cat([left[:, :1], halves], 1), torch.full((1 + halves.shape[1],), -1.0).to(left)
        weights[0] = 1.0
        if right is None:
            columns = torch.cat([left[:, :1], left[:, 1:]], 1)
            return CorrectedGram(base, columns, weights[: columns.shape[1]], **labels)
        return CorrectedGram(base, columns, weights, torch.cat([other[:, :1], others], 1), **labels)

    def test_is_as_far_away_as_its_base(self) -> None:
        base, columns, v = CountedGram(tangent_like(100)), features(100, 2), features(100, 3, seed=1)
        gram = CorrectedGram(base, columns, torch.ones(2).double())
        assert gram.out_of_core
        assert_close(gram @ v, (base._values + columns @ columns.T) @ v)
        assert base.log["passes"] == 1

    def test_wrong_shapes_are_refused(self) -> None:
        with pytest.raises(UsageError, match="expected"):
            CorrectedGram(DenseGram(torch.eye(3), symmetric=True), torch.ones(2, 1), torch.ones(1))

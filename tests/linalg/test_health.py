"""PSD health and the nearest PSD kernel against dense float64 algebra, for kernels in memory and out of core."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from contracts.counted import CountedGram, Formed
from ntkscope.linalg import DenseGram, nearest_psd, psd_health
from ntkscope.linalg.grams.corrected import CorrectedGram
from strategies.matrices import random, with_eigenvalues


def kernel_with(negative: list[float], n: int = 300) -> Tensor:
    """One large eigenvalue, a decade of decay, and these."""
    values = torch.cat([torch.tensor([100.0]), torch.logspace(1, 0, n - 1 - len(negative)), torch.tensor(negative)])
    return with_eigenvalues(values)


class TestHealth:
    @settings(max_examples=30, deadline=None)
    @given(n=st.integers(1, 30), lowest=st.floats(-3, 3), seed=st.integers(0, 100))
    def test_by_decomposition_against_the_definitions(self, n: int, lowest: float, seed: int) -> None:
        matrix = with_eigenvalues(torch.linspace(lowest, 5, n), seed)
        values = np.linalg.eigvalsh(matrix.numpy())
        found = psd_health(matrix)
        assert found.method == "eigenvalues"
        assert found.smallest_eigenvalue == pytest.approx(values[0], abs=1e-12)
        assert found.largest_eigenvalue == pytest.approx(values[-1], abs=1e-12)
        assert found.negative_mass == pytest.approx(
            -values[values < 0].sum() / max(np.abs(values).sum(), 1e-300), abs=1e-12
        )
        if values[0] > 1e-6:
            assert found.condition_number == pytest.approx(values[-1] / values[0], rel=1e-6)
        assert found.positive == (values[0] > -1e-9)

    @pytest.mark.parametrize("negative", [[], [-0.5], [-2.0, -0.3, -1e-3]])
    def test_by_passes(self, negative: list[float]) -> None:
        matrix = kernel_with(negative)
        gram = CountedGram(matrix)
        found = psd_health(gram)
        exact = torch.linalg.eigvalsh(matrix)
        assert found.method == "lanczos"
        assert found.passes == gram.log["passes"] == 1 + -(-300 // 16)  # the space was exhausted before 32 steps
        assert found.smallest_eigenvalue >= float(exact[0]) - 1e-10  # Ritz values never leave the spectrum
        assert found.smallest_eigenvalue - found.smallest_error <= float(exact[0]) + 1e-10
        assert found.largest_eigenvalue == pytest.approx(float(exact[-1]))
        mass = float((-exact).clamp_min(0).sum() / exact.abs().sum())
        assert abs(found.negative_mass - mass) <= 4 * found.negative_mass_error + 1e-12
        assert found.positive == (not negative)

    def test_few_passes_say_how_far_they_are(self) -> None:
        matrix = kernel_with([], n=600)
        found = psd_health(CountedGram(matrix), probes=8, steps=6)
        exact = float(torch.linalg.eigvalsh(matrix)[0])
        assert found.passes == 7
        assert exact - 1e-10 <= found.smallest_eigenvalue <= exact + 3
        gaps = (torch.linalg.eigvalsh(matrix) - found.smallest_eigenvalue).abs()
        assert float(gaps.min()) <= found.smallest_error  # an eigenvalue lies that near
        assert found.smallest_error > 1e-3  # and it is not pretended to be exact
        assert found.negative_mass == 0
        assert found.positive

    @pytest.mark.parametrize("make", [lambda m: m, CountedGram])
    @pytest.mark.parametrize("lowest", [-0.5, -1e-9, 1e-3])
    def test_the_jitter_lets_cholesky_through(self, make, lowest: float) -> None:  # type: ignore[no-untyped-def]
        matrix = kernel_with([lowest], n=120)
        jitter = psd_health(make(matrix)).jitter
        assert int(torch.linalg.cholesky_ex(matrix + jitter * torch.eye(120).double())[1]) == 0
        assert (jitter == 0) == (lowest > 0)
        assert jitter < 2 * max(0.0, -lowest) + 1e-8

    def test_rounding_is_no_illness(self) -> None:
        left = random(400, 10)
        single = (left @ left.T).float()
        found = psd_health(single)
        assert found.smallest_eigenvalue < 0  # by float32's rounding alone
        assert found.positive
        assert found.condition_number == math.inf
        assert not psd_health(single.double()).positive  # as float64 entries that would be an illness
        assert "up to rounding" in str(found)

    def test_asymmetry(self) -> None:
        matrix = kernel_with([], n=100)
        assert psd_health(matrix).asymmetry == 0
        bent = matrix + 1e-3 * torch.triu(torch.ones(100, 100).double(), 1)
        expected = float((bent - bent.T).norm() / bent.norm())
        assert psd_health(bent).asymmetry == pytest.approx(expected)
        assert psd_health(bent.numpy()).asymmetry == pytest.approx(expected)
        assert psd_health(DenseGram(bent, symmetric=True)).asymmetry == pytest.approx(expected)
        found = psd_health(CountedGram(bent, symmetric=True), probes=40).asymmetry
        assert found == pytest.approx(expected, rel=0.5)  # an estimate from 780 pairs of probes


class TestNearest:
    @settings(max_examples=30, deadline=None)
    @given(n=st.integers(1, 20), seed=st.integers(0, 200), floor=st.sampled_from([0, 0.25]))
    def test_clipping_is_the_projection(self, n: int, seed: int, floor: float) -> None:
        matrix = with_eigenvalues(torch.linspace(-1, 2, n), seed)
        found = nearest_psd(matrix, floor=floor).dense()
        values, vectors = torch.linalg.eigh(matrix)
        assert_close(found, vectors @ torch.diag(values.clamp_min(floor)) @ vectors.T, rtol=0, atol=1e-12)
        assert torch.equal(found, found.T)
        # the projection onto a convex set: every other member lies at an obtuse angle
        other = with_eigenvalues(torch.linspace(floor, 3, n), seed + 1)
        assert float(((matrix - found) * (other - found)).sum()) <= 1e-10

    def test_a_kernel_comes_back_as_it_is(self) -> None:
        gram = DenseGram(kernel_with([]), symmetric=True, name="x")
        assert nearest_psd(gram) is gram
        counted = CountedGram(kernel_with([]))
        assert nearest_psd(counted) is counted
        twice = nearest_psd(kernel_with([-1.0]), floor=1e-6)
        assert nearest_psd(twice) is twice

    def test_labels_and_what_was_done_are_carried(self) -> None:
        gram = nearest_psd(DenseGram(kernel_with([-1.0, -0.5]), symmetric=True, name="trntk", meta={"seed": 3}))
        assert (gram.name, gram.meta["seed"]) == ("trntk", 3)
        said = gram.meta["nearest_psd"]
        assert said["lifted"] == 2
        assert said["smallest"] == pytest.approx(-1)
        assert said["change (Frobenius)"] == pytest.approx(1.25**0.5)

    @pytest.mark.parametrize("negative", [[-0.5], [-2.0, -0.3, -0.2]])
    def test_deflation_out_of_core(self, negative: list[float]) -> None:
        matrix = kernel_with(negative)
        gram = CountedGram(matrix)
        found = nearest_psd(gram, pairs=8)
        assert isinstance(found, CorrectedGram)
        assert found.out_of_core
        with pytest.raises(Formed):
            found.dense()
        fixed = CorrectedGram(DenseGram(matrix, symmetric=True), found._left, found._weights).dense()
        assert_close(fixed, nearest_psd(matrix).dense(), rtol=0, atol=1e-8)
        assert float(torch.linalg.eigvalsh(fixed)[0]) > -1e-9
        assert not found.meta["nearest_psd"]["perhaps more"]
        v = random(300, 2, seed=1)
        assert_close(found @ v, fixed @ v)
        assert_close(found.diagonal(), fixed.diagonal())
        assert psd_health(found).positive
        assert not psd_health(gram).positive

    def test_a_few_passes_never_lower_an_eigenvalue(self) -> None:
        """Ritz pairs that are far from eigenpairs: what is added is positive semi-definite all the same."""
        matrix = with_eigenvalues(torch.linspace(-3, 5, 200))
        found = nearest_psd(CountedGram(matrix), pairs=5, max_passes=2)
        fixed = CorrectedGram(DenseGram(matrix, symmetric=True), found._left, found._weights).dense()  # type: ignore[attr-defined]
        before, after = torch.linalg.eigvalsh(matrix), torch.linalg.eigvalsh(fixed)
        assert bool((after >= before - 1e-12).all())
        assert float(torch.linalg.eigvalsh(fixed - matrix)[0]) > -1e-12
        said = found.meta["nearest_psd"]
        assert said["perhaps more"]
        assert float((fixed - matrix).norm()) == pytest.approx(said["change (Frobenius)"])
        assert said["largest residual"] > 1e-3

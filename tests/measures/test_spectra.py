"""Spectra: comparisons against scipy, and what the rule calls matrices whose class is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from ntkscope.core import UsageError, generator
from ntkscope.linalg import as_gram
from ntkscope.linalg.features.rows import distinct_rows
from ntkscope.linalg.random_matrices.spiked import spike_threshold
from ntkscope.measures.spectra import LABELS, classify, classify_eigenvalues, compare


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "classes", *shape), dtype=torch.float64)


def unit(n: int) -> Tensor:
    vector = noise(n, seed=3)
    return vector / vector.norm()


def directions(shape: tuple[int, int], times: Tensor) -> Tensor:
    u, v = (torch.linalg.qr(noise(side, len(times), seed=7))[0] for side in shape)
    return (u * times * spike_threshold(shape)) @ v.T


def cauchy(*shape: int) -> Tensor:
    return torch.tan(torch.pi * (torch.rand(*shape, generator=generator(0, "cauchy"), dtype=torch.float64) - 0.5))


class TestCompare:
    def test_against_scipy(self) -> None:
        one, two = noise(60).abs().numpy(), 1.3 * noise(80, seed=1).abs().numpy()
        change = compare(one, two)
        assert change.ks == pytest.approx(stats.ks_2samp(one, two).statistic)
        assert change.wasserstein == pytest.approx(stats.wasserstein_distance(one, two))
        assert change.top_shift == pytest.approx(two.max() / one.max() - 1)
        assert change.quantiles.shape == (2, 60)
        assert bool((np.diff(change.quantiles) >= 0).all())

    def test_matrices_and_grams(self) -> None:
        W = noise(12, 9)
        values = torch.linalg.svdvals(W)
        assert compare(values, W).wasserstein < 1e-12
        assert compare(values.square(), as_gram(W.T @ W)).wasserstein < 1e-12
        assert compare(W, W).ks == 0


class TestClassify:
    shape = (60, 90)

    @pytest.mark.parametrize("draws", [0, 39])
    @pytest.mark.parametrize(
        ("matrix", "label", "cause"),
        [
            (noise(60, 90, seed=2), "invariant bulk", "noise"),
            (2 * torch.rand(60, 90, generator=generator(3, "uniform")) - 1, "invariant bulk", "noise"),
            (noise(60, 90) + directions((60, 90), torch.tensor([3.0])), "bulk + spikes", "learned directions"),
            (noise(60, 90) + directions((60, 90), torch.linspace(3, 5, 5)), "bulk + spikes", "learned directions"),
            (noise(60, 90) + directions((60, 90), 10 * torch.arange(1, 31) ** -0.7), "heavy tail", "many directions"),
            (cauchy(60, 90), "heavy tail", "a few huge entries"),
        ],
    )
    def test_known_classes(self, draws: int, matrix: Tensor, label: str, cause: str) -> None:
        found = classify(matrix, draws=draws)
        assert (found.label, found.evidence["cause"]) == (label, cause)
        assert found.label in LABELS
        assert all(isinstance(value, int | float | str) for value in found.evidence.values())
        assert (found.tail is None) == (label == "invariant bulk")

    def test_a_sparse_direction_is_a_direction(self) -> None:
        """Few rows and columns carry it, but many entries: no single one is huge."""
        u, v = torch.zeros(60).double(), torch.zeros(90).double()
        u[:6], v[:9] = 6**-0.5, 9**-0.5
        found = classify(noise(60, 90) + 4 * spike_threshold(self.shape) * torch.outer(u, v), draws=39)
        assert found.label == "bulk + spikes"
        assert found.evidence["rows that carry it"] < 12

    def test_orthogonal_weights_are_not_noise(self) -> None:
        found = classify(torch.linalg.qr(noise(90, 60))[0], draws=39)
        assert found.label == "undecided"
        assert "Marchenko" in str(found.evidence["reason"])

    def test_few_singular_values(self) -> None:
        found = classify(noise(49, 300))
        assert (found.label, found.spikes, found.tail) == ("undecided", None, None)
        assert "49" in str(found.evidence["reason"])
        assert classify(as_gram(torch.eye(49)), as_gram(torch.eye(49))).label == "undecided"

    def test_with_the_initial_weights(self) -> None:
        W0 = torch.linalg.qr(noise(90, 60))[0]
        assert classify(W0, W0, draws=39).label == "invariant bulk"  # whatever the bulk's law
        assert classify(1.05 * W0, W0, draws=39).evidence["distance of the bulk"] < 0.02
        changed = noise(60, 90) + directions(self.shape, torch.tensor([3.0]))
        found = classify(changed, noise(60, 90), draws=39)
        assert found.label == "bulk + spikes"
        assert found.spikes is not None
        assert found.spikes.count == 1
        with pytest.raises(UsageError, match="same layer"):
            classify(changed, W0, draws=39)


class TestKernels:
    def kernel(self, seed: int = 0) -> Tensor:
        X = noise(80, 120, seed=seed)
        return X @ X.T / 120

    def test_marchenko_pastur_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"Marchenko–Pastur law is for independent entries.*W0=K0"):
            classify(as_gram(self.kernel()))
        with pytest.raises(UsageError, match="not independent"):
            classify(self.kernel())  # symmetric: a Gram that is not called one
        with pytest.raises(UsageError, match="expected Grams for both"):
            classify(as_gram(self.kernel()), self.kernel())
        with pytest.raises(UsageError, match="same items"):
            classify(as_gram(self.kernel()), as_gram(self.kernel()[:60, :60]))

    def test_against_the_initial_kernel(self) -> None:
        K0 = self.kernel()
        y = noise(80, seed=3)
        y = y / y.norm()
        spike = K0 + 6 * torch.outer(y, y)
        Q = torch.linalg.qr(noise(80, 12, seed=4))[0]
        many = K0 + (Q * torch.linspace(12, 4, 12)) @ Q.T
        for K, label in (
            (K0, "invariant bulk"),
            (1.4 * K0, "invariant bulk"),
            (spike, "bulk + spikes"),
            (many, "heavy tail"),
        ):
            found = classify(as_gram(K), as_gram(K0))
            assert found.label == label
            assert found.spikes is None
        assert classify(as_gram(spike), as_gram(K0)).evidence["eigenvalues outside"] == 1

    def test_redrawn_initialisations_set_the_tolerance(self) -> None:
        starts = [as_gram(self.kernel(seed)) for seed in range(1, 6)]
        found = classify(as_gram(self.kernel(6)), starts)
        assert found.label == "invariant bulk"
        assert 0.02 <= float(found.evidence["tolerance"]) < 0.2

    def test_a_top_that_shrank_is_no_invariant_bulk(self) -> None:
        K0 = self.kernel()
        values, vectors = torch.linalg.eigh(K0 + 6 * torch.outer(vector := unit(80), vector))
        for factor, fell in ((0.95, 0), (0.6, 1)):
            smaller = values.clone()
            smaller[-1] *= factor
            found = classify(as_gram((vectors * smaller) @ vectors.T), as_gram((vectors * values) @ vectors.T))
            assert found.evidence["eigenvalues that fell"] == fell
            assert found.label == ("undecided" if fell else "invariant bulk")
        assert "1 of the largest fell" in str(found.evidence["reason"])

    def test_rounding_of_a_low_rank_is_neither_growth_nor_fall(self) -> None:
        X = noise(80, 3)
        K0, K = X @ X.T, (X @ torch.linalg.qr(noise(3, 3, seed=1))[0]) @ (X @ torch.linalg.qr(noise(3, 3, seed=1))[0]).T
        found = classify(as_gram(K), as_gram(K0))
        assert (found.evidence["eigenvalues outside"], found.evidence["eigenvalues that fell"]) == (0, 0)

    def test_rounding_of_rank_one_is_one_direction(self) -> None:
        """What rounding leaves beside one large eigenvalue is no spike, whatever the bulk was."""
        found = classify(as_gram(torch.outer(unit(80), unit(80))), as_gram(self.kernel()))
        assert found.evidence["eigenvalues outside"] == 1

    def test_from_eigenvalues_alone(self) -> None:
        K0, K = self.kernel(), self.kernel(1) + 6 * torch.outer(unit(80), unit(80))
        whole = classify(as_gram(K), as_gram(K0))
        values, initial = (torch.linalg.eigvalsh(one).flip(0).numpy() for one in (K, K0))
        assert classify_eigenvalues(values, initial[None]).evidence == pytest.approx(whole.evidence)


class TestRepeats:
    def test_repeated_rows_are_no_learned_direction(self) -> None:
        W = noise(80, 160)
        W[60:] = W[0]
        found = classify(W, draws=0)
        assert (found.label, found.evidence["cause"]) == ("undecided", "repeated rows or columns")
        assert (found.evidence["repeated rows"], found.evidence["repeated columns"]) == (20, 0)
        assert "20 rows repeat others" in str(found.evidence["reason"])
        assert classify(W.T.clone(), draws=39).evidence["repeated columns"] == 20
        assert classify(W[:60], draws=0).label == "invariant bulk"

    def test_a_direction_beside_repeats_is_still_one(self) -> None:
        W = noise(80, 160) + directions((80, 160), torch.tensor([4.0]))
        W[70:] = W[0]
        found = classify(W, draws=0)
        assert found.label == "bulk + spikes"
        assert (found.evidence["repeated rows"], found.evidence["spikes without repeats"]) == (10, 1)
        assert "without the 10 rows that repeat others" in str(found.evidence["reason"])
        few = W[:55].clone()
        few[10:] = few[9]
        assert classify(few, draws=0).label == "undecided"  # 10 rows are left

    def test_with_the_initial_weights(self) -> None:
        W0 = noise(80, 160, seed=1)
        W = W0.clone()
        W[60:] = W[0]
        assert classify(W, W0, draws=39).evidence["cause"] == "repeated rows or columns"

    def test_distinct_rows(self) -> None:
        """Against the naive way, with zeros of both signs and rows that differ in one entry."""
        A = torch.randint(-1, 2, (40, 3), generator=generator(0, "repeats")).double()
        A[A == 0] *= -1
        A[5] = A[7]
        seen: list[list[float]] = []
        expected = [k for k, row in enumerate(A.tolist()) if row not in seen and not seen.append(row)]  # type: ignore[func-returns-value]
        assert distinct_rows(A).tolist() == expected
        assert len(distinct_rows(noise(30, 5))) == 30


def test_too_few_draws_for_a_level_of_five_percent_are_refused() -> None:
    noise = torch.randn(60, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(UsageError, match="at least 19 draws"):
        classify(noise, draws=9)

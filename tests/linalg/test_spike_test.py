"""The test for spikes against naive permutation, planted directions, and the formulas it inverts."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ntkscope.core import NumericalError, UsageError, derive_seed, generator
from ntkscope.linalg import DenseGram, NumericalWarning, spike_test
from ntkscope.linalg.random_matrices.nulls import NoiseNull, constants
from ntkscope.linalg.random_matrices.spiked import (
    spike_overlaps,
    spike_strength,
    spike_threshold,
    spiked_value,
)
from ntkscope.linalg.sketches.sketch import random_words
from ntkscope.linalg.spectra.largest import DIRECT, largest_singular_values


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "spikes", *shape), dtype=torch.float64)


def planted(
    shape: tuple[int, int], times: float, seed: int = 0, law: str = "gaussian"
) -> tuple[Tensor, Tensor, Tensor]:
    """Noise with one direction of `times` the threshold, and the direction."""
    u, v = noise(shape[0], seed=seed + 1000), noise(shape[1], seed=seed + 2000)
    u, v = u / u.norm(), v / v.norm()
    W = noise(*shape, seed=seed)
    W = W.sign() if law == "sign" else W
    return W + times * spike_threshold(shape) * torch.outer(u, v), u, v


class TestLargest:
    @settings(max_examples=12, deadline=None)
    @given(rows=st.integers(1, 70), columns=st.integers(1, 70), seed=st.integers(0, 99))
    def test_lanczos_agrees_with_svd(self, rows: int, columns: int, seed: int) -> None:
        A = noise(3, rows, columns, seed=seed)
        A[1] *= 1e-3
        A[2, 1:] = 0  # rank one: Lanczos ends at once
        expected = torch.linalg.svdvals(A)[:, 0]
        kept = DIRECT.copy()
        try:
            DIRECT["cpu"] = 0
            assert_close(largest_singular_values(A), expected, rtol=1e-7, atol=0)
        finally:
            DIRECT.update(kept)
        assert_close(largest_singular_values(A), expected, rtol=1e-7, atol=0)

    def test_at_the_edge_of_large_noise(self) -> None:
        A = noise(4, 180, 260)
        assert_close(largest_singular_values(A), torch.linalg.svdvals(A)[:, 0], rtol=1e-9, atol=0)


class TestSpikedModel:
    @given(
        rows=st.integers(2, 2000),
        columns=st.integers(2, 2000),
        times=st.floats(1.001, 50),
        scale=st.floats(1e-3, 1e3),
    )
    def test_strength_inverts_the_value(self, rows: int, columns: int, times: float, scale: float) -> None:
        strength = times * spike_threshold((rows, columns), scale)
        value = spiked_value(strength, (rows, columns), scale)
        # the value is flat at the threshold: rounding there moves the strength by its root
        assert spike_strength(value, (rows, columns), scale) == pytest.approx(strength, rel=1e-6)

    def test_below_the_threshold_nothing_shows(self) -> None:
        edge = math.sqrt(50) + math.sqrt(80)
        assert spiked_value(1.0, (50, 80)) == pytest.approx(edge)
        assert spike_strength(edge - 0.1, (50, 80)) == spike_threshold((50, 80))
        assert spike_overlaps(spike_threshold((50, 80)), (50, 80)) == pytest.approx((0, 0), abs=1e-6)

    def test_formulas_hold_on_a_large_matrix(self) -> None:
        shape = (300, 500)
        W, u, v = planted(shape, 3.0)
        left, values, right = torch.linalg.svd(W, full_matrices=False)
        strength = 3 * spike_threshold(shape)
        assert float(values[0]) == pytest.approx(spiked_value(strength, shape), rel=0.02)  # fluctuates by 1/θ
        cosines = abs(float(left[:, 0] @ u)), abs(float(right[0] @ v))
        assert cosines == pytest.approx(spike_overlaps(strength, shape), abs=0.02)


def naive(W: Tensor, level: float, draws: int, seed: int) -> tuple[int, list[float]]:
    """One value at a time, all singular values of every permuted matrix."""
    residual = W - W.mean()
    rows, columns = W.shape
    p_values: list[float] = []
    for k in range(min(W.shape) - 1):
        left, values, right = torch.linalg.svd(residual, full_matrices=False)
        tops = []
        for draw in range(draws):
            words = random_words(derive_seed(seed, "spike test", k), torch.tensor([draw]), torch.arange(W.numel()))[0]
            tops.append(float(torch.linalg.svdvals(residual.flatten()[words.argsort()].view(W.shape))[0]))
        room = (1 / math.sqrt(rows - k) + 1 / math.sqrt(columns - k)) / (1 / math.sqrt(rows) + 1 / math.sqrt(columns))
        p = (1 + sum(top * room >= float(values[0]) for top in tops)) / (1 + draws)
        if p > level:
            return k, p_values
        p_values.append(p)
        residual = residual - values[0] * torch.outer(left[:, 0], right[0])
    return len(p_values), p_values


class TestPermutation:
    @pytest.mark.parametrize(("rows", "columns"), [(20, 30), (31, 17)])
    @pytest.mark.parametrize("times", [0.0, 3.0])
    def test_against_the_naive_way(self, rows: int, columns: int, times: float) -> None:
        W, _, _ = planted((rows, columns), times)
        found = spike_test(W, draws=39, seed=3)
        count, p_values = naive(W, 0.05, 39, 3)
        assert (found.count, list(found.p_values)) == (count, p_values)

    def test_all_at_once_is_one_by_one(self) -> None:
        """Three clear spikes are found in one round; one by one gives the same number."""
        W = noise(40, 50)
        for k in range(3):
            W = W + planted((40, 50), 4.0 + 2 * k, seed=k)[0] - noise(40, 50, seed=k)
        found = spike_test(W, draws=39)
        assert found.count == 3 == naive(W, 0.05, 39, 0)[0]

    def test_exact_under_the_null(self) -> None:
        """The rank of the value among draws is uniform: of 200 matrices 5 % ± 3 errors, p-values' mean ½."""
        p = [spike_test(noise(8, 12, seed=seed) ** 3, draws=19, seed=seed).p_value for seed in range(200)]
        share = sum(value <= 0.05 for value in p) / len(p)
        assert abs(share - 0.05) < 3 * math.sqrt(0.05 * 0.95 / 200)
        assert abs(np.mean(p) - 0.525) < 3 * math.sqrt(1 / 12 / 200)  # uniform on 1/20, …, 1

    def test_a_direction_is_described(self) -> None:
        shape = (60, 90)
        W, u, v = planted(shape, 3.0)
        found = spike_test(0.1 * W + 5)
        assert found.count == 1
        assert found.mean == pytest.approx(5, abs=0.1)
        assert found.scale == pytest.approx(0.1, rel=0.05)
        assert found.strengths[0] == pytest.approx(0.3 * spike_threshold(shape), rel=0.15)
        assert abs(float(found.left[:, 0] @ u)) == pytest.approx(found.overlaps[0][0], abs=0.1)
        assert abs(float(found.right[:, 0] @ v)) == pytest.approx(found.overlaps[0][1], abs=0.1)
        assert all(0.2 < share < 0.6 for share in found.participation[0])
        assert found.values[0] > found.edge
        assert found.p_values == (1 / 200,)

    def test_huge_entries_are_no_spike(self) -> None:
        W = noise(50, 60)
        W[3, 4] = 60.0
        assert spike_test(W, draws=39).count == 0
        with pytest.warns(NumericalWarning, match="kurtosis"):
            spike_test(W, null="tracy-widom")

    def test_a_matrix_of_low_rank_ends(self) -> None:
        W = torch.outer(noise(30), noise(40, seed=1))
        found = spike_test(W, draws=39)
        assert found.count >= 1
        assert math.isfinite(found.strengths[0])

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_the_same_on_cuda(self) -> None:
        W, _, _ = planted((100, 170), 1.2)
        here, there = spike_test(W), spike_test(W.cuda())
        assert here.p_value == there.p_value
        assert here.p_values == there.p_values


class TestTracyWidomNull:
    @pytest.mark.parametrize("law", ["gaussian", "sign"])
    def test_calibrated(self, law: str) -> None:
        """400 matrices, each with its own scale and kurtosis: the share above the edge at 5 %."""
        A = noise(400, 50, 70)
        A = A.sign() if law == "sign" else A
        A = A - A.mean((1, 2), keepdim=True)
        edges = torch.tensor([NoiseNull(0.05).round(W, 0, 1.0)[0] for W in A], dtype=torch.float64)
        share = float((largest_singular_values(A) > edges).double().mean())
        assert abs(share - 0.05) < 3 * math.sqrt(0.05 * 0.95 / 400)

    def test_p_values_and_edge_agree(self) -> None:
        W = noise(50, 70) - noise(50, 70).mean()
        edge, probability = NoiseNull(0.05).round(W, 0, 1.0)
        assert probability(torch.tensor([edge], dtype=torch.float64)) == pytest.approx([0.05], rel=1e-6)

    def test_plain_constants_would_not_do_for_signs(self) -> None:
        """Without the kurtosis correction fewer than 2.5 % of sign matrices exceed the 5 % point."""
        A = noise(400, 50, 70).sign()
        values = largest_singular_values(A - A.mean((1, 2), keepdim=True)).square()
        centre, width = constants((50, 70), 0.0)
        assert float(((values - centre) / width + -1.2065 > 0.9793).double().mean()) < 0.025

    @pytest.mark.parametrize(
        ("W", "doubtful"),
        [
            (noise(20, 30), False),
            (torch.special.ndtr(noise(20, 30)), True),  # uniform: 8 % exceed the 5 % point
            (torch.special.ndtr(noise(40, 60)), False),
            (noise(8, 40), True),
            (noise(60, 80).sign(), False),
            (noise(50, 50).sign(), True),
        ],
    )
    def test_warns_where_it_is_not_calibrated(self, W: Tensor, doubtful: bool) -> None:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            spike_test(W, null="tracy-widom")
        assert [warning.category for warning in seen] == [NumericalWarning] * doubtful


class TestInitialNull:
    def test_only_what_training_added(self) -> None:
        W0 = noise(50, 60)
        assert spike_test(W0 + 0.01 * noise(50, 60, seed=5), null=W0, draws=39).count == 0
        found = spike_test(W0 + planted((50, 60), 3.0)[0] - noise(50, 60), null=W0, draws=39)
        assert found.count == 1
        assert found.p_values == (1 / 40,)

    def test_the_initial_spike_is_part_of_the_null(self) -> None:
        W0, _, _ = planted((50, 60), 3.0)
        assert spike_test(W0, null=W0, draws=39, level=0.025).count == 0

    def test_another_shape_is_refused(self) -> None:
        with pytest.raises(UsageError, match="same shape"):
            spike_test(noise(5, 6), null=noise(6, 5))


@pytest.mark.parametrize(
    ("W", "options", "error", "match"),
    [
        (torch.zeros(3), {}, UsageError, "flatten a convolution"),
        (torch.zeros(0, 4), {}, UsageError, "at least two rows"),
        (torch.zeros(1, 4), {}, UsageError, "at least two rows"),
        (torch.ones(5, 4), {}, NumericalError, "constant"),
        (torch.eye(5), {}, UsageError, "transpose"),
        (DenseGram(torch.eye(5), symmetric=True), {}, UsageError, "not independent"),
        (noise(5, 6), {"level": 0.001}, UsageError, "at least 999 draws"),
        (noise(5, 6), {"draws": 0}, UsageError, "at least 19 draws"),
        (noise(5, 6), {"null": torch.ones(5, 6)}, NumericalError, "W0 is constant"),
    ],
)
def test_refuses(W: Tensor, options: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        spike_test(W, **options)

"""The data of the neural feature ansatz: quadratic targets, spectral decay, and the alignment-reversing set."""

from __future__ import annotations

from math import cos, pi
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contracts.dataset import DatasetContract, given
from ntkscope.core import Split
from ntkscope_papers.beaglehole_2024.data import alignment_reversing, chain_monomial, high_rank_polynomial, reverse


def chain(x: Tensor, rank: int) -> Tensor:
    return sum((x[:, k % rank] * x[:, (k + 1) % rank] for k in range(1, rank + 1)), torch.zeros(len(x)))


class TestChainMonomial(DatasetContract):
    """Figure 2's setting (ledger nfa-chain-monomial, nfa-fig2-setting)."""

    name = "chain-monomial"
    loader = staticmethod(chain_monomial)
    item_shape = (32,)
    sizes = given(train=256, test=1024)

    def check_defining_property(self, split: Split) -> None:
        scale = split.extras["label_scale"]
        for part in (split.train, split.test):
            torch.testing.assert_close(part.y * scale, chain(part.x, 5), atol=1e-5, rtol=1e-4)
        assert abs(float(split.train.y.std(correction=0)) - 1) < 1e-5
        egop = split.extras["egop"] * scale**2
        assert float(egop[5:].abs().max()) == 0
        for i in range(5):
            for j in range(5):  # 2 on the diagonal, 1 at cyclic distance 2, else 0
                distance = min((i - j) % 5, (j - i) % 5)
                assert abs(float(egop[i, j]) - {0: 2, 1: 0, 2: 1}[distance]) < 1e-5


@pytest.mark.parametrize("rank", [2, 3, 4, 5, 8, 12])
def test_chain_spectrum_and_variance(rank: int) -> None:
    """Eigenvalues 4 cos²(2πm/r); rank r - 2 for multiples of 4 (erratum of nfa-egop-chain); variance r, 4 for r = 2."""
    split = chain_monomial(rank=rank, dimension=rank + 3, train=200_000, test=1, unit_labels=False, dtype="float64")
    values = torch.linalg.eigvalsh(split.extras["egop"])
    expected = sorted([4 * cos(2 * pi * m / rank) ** 2 for m in range(rank)] + [0.0] * 3)
    if rank > 2:
        np.testing.assert_allclose(values.numpy(), expected, atol=1e-12)
        assert int((values > 1e-9).sum()) == (rank - 2 if rank % 4 == 0 else rank)
    variance = 4 if rank == 2 else rank
    assert abs(float(split.train.y.var()) / variance - 1) < 0.05  # sd about sqrt(κ/n) < 1 %


def test_gradients_average_to_the_egop() -> None:
    split = chain_monomial(decay=1.0, train=100_000, test=1, dtype="float64")
    x, form = split.train.x, split.extras["form"]
    gradients = 2 * x @ form / split.extras["label_scale"]
    torch.testing.assert_close(gradients.T @ gradients / len(x), split.extras["egop"], atol=0.02, rtol=0.05)


@pytest.mark.parametrize("decay", [0, 1, 2.0, float("inf")])
@pytest.mark.parametrize("make", [chain_monomial, high_rank_polynomial])
def test_spectral_decay(make: Any, decay: float) -> None:
    """Ledger nfa-appC-spectrum: λ_k = 1 / (1 + k^α), k from 1, in a random basis; α = 0 gives I/2, ∞ rank one."""
    split = make(dimension=16, decay=decay, train=50_000, test=10, dtype="float64")
    expected = np.array([1 / (1 + float(k) ** decay) for k in range(1, 17)])
    values = torch.linalg.eigvalsh(split.extras["covariance"]).numpy()[::-1]
    np.testing.assert_allclose(values, expected, atol=1e-12)
    sample = split.train.x.T @ split.train.x / len(split.train)
    assert float((sample - split.extras["covariance"]).abs().max()) < 6 * (2 / 50_000) ** 0.5 * 0.5
    if decay not in (0, float("inf")):  # the basis is not the coordinate one
        assert (
            float((split.extras["covariance"] - torch.diag(split.extras["covariance"].diagonal())).abs().max()) > 0.01
        )


class TestDecayingChain(DatasetContract):
    name = "chain-monomial"
    loader = staticmethod(chain_monomial)
    options = given(decay=2, train=384, test=64)
    item_shape = (32,)


class TestHighRank(DatasetContract):
    """Figure 6's setting (ledger nfa-fig6-setting)."""

    name = "high-rank-polynomial"
    loader = staticmethod(high_rank_polynomial)
    item_shape = (128,)
    sizes = given(train=128, test=1024)

    def check_defining_property(self, split: Split) -> None:
        q, scale = split.extras["Q"], split.extras["label_scale"]
        assert abs(float(q.std()) - 1) < 5 / (2 * 128**2) ** 0.5
        for part in (split.train, split.test):
            torch.testing.assert_close(part.y * scale, (part.x @ q.T).square().sum(dim=1), rtol=1e-4, atol=1e-2)
        assert abs(float(split.train.y.std(correction=0)) - 1) < 1e-4
        assert int(torch.linalg.matrix_rank(split.extras["egop"].double())) == 128


def derivative_correlation(split: Split, width: int, seed: int) -> float:
    """ρ of W'ᵀW' = M R M and W'ᵀKW' = M R B R M for f = a·(Wx)², M = XᵀYX, B = XᵀX, R = Wᵀ diag(a²) W."""
    x, y = split.train.x, split.train.y
    random = torch.Generator().manual_seed(seed)
    w = torch.randn(width, x.shape[1], generator=random, dtype=x.dtype) / width**0.5
    a = torch.randn(width, generator=random, dtype=x.dtype)
    r, m, b = w.T @ (a.square()[:, None] * w), x.T @ (y[:, None] * x), x.T @ x
    first, second = m @ r @ m, m @ r @ b @ r @ m
    return float((first * second).sum() / (first.norm() * second.norm()))


class TestAlignmentReversing(DatasetContract):
    name = "alignment-reversing"
    loader = staticmethod(alignment_reversing)
    options = given(n=96, dimension=96, balance=0.25)
    item_shape = (96,)
    sizes = given(train=96, test=96)

    def check_defining_property(self, split: Split) -> None:
        split = self.make(dtype="float64")
        x1, x2 = split.extras["x1"], split.extras["x2"]
        assert (len(x1), len(x2)) == (24, 72)
        assert abs(float(torch.linalg.matrix_norm(x1, 2)) - 1) < 1e-12
        # X₂ᵀX₂ = (X₁ᵀX₁)⁻² on the row space of X₁, and 0 off it
        values, vectors = torch.linalg.eigh(x1.T @ x1)
        support, rest = vectors[:, -24:], vectors[:, :-24]
        inverse = (support / values[-24:].square()) @ support.T
        product = x2.T @ x2
        assert float((product - inverse).norm() / inverse.norm()) < 1e-9
        assert float((product @ rest).norm() / inverse.norm()) < 1e-9
        # the term it was built for: S X₂ᵀX₂ S is the projector onto that space
        s = x1.T @ x1
        torch.testing.assert_close(s @ product @ s, support @ support.T, atol=1e-8, rtol=0)
        # noise 1e-2 on the inputs, labels 1 + 1e-5 and 1e-5
        noise = split.train.x - torch.cat([x1, x2])
        assert abs(float(noise.std()) / 1e-2 - 1) < 5 / (2 * 96 * 96) ** 0.5
        assert torch.equal(split.train.extras["first"], torch.arange(96) < 24)
        torch.testing.assert_close(split.train.y, split.train.extras["first"].double() + 1e-5)
        assert not torch.equal(split.train.x, split.test.x)

    def test_lower_balance_lowers_the_correlation(self) -> None:
        """Figure 3's trend under the default reading: seeds averaged, 0.05 clear of balance 1."""
        mean = {}
        for balance in (0.05, 1.0):
            splits = [self.make(seed=s, balance=balance, n=128, dimension=128, dtype="float64") for s in range(6)]
            mean[balance] = np.mean([derivative_correlation(split, 128, 99) for split in splits])
        assert mean[1.0] > 0.99
        assert mean[0.05] < mean[1.0] - 0.05


class TestAlignmentReversingSubsample(DatasetContract):
    name = "alignment-reversing"
    loader = staticmethod(alignment_reversing)
    options = given(n=64, dimension=48, balance=0.5, reading="subsample", unit_norm=False)
    item_shape = (48,)


def test_tall_data_inverts_everything() -> None:
    split = alignment_reversing(n=200, dimension=20, balance=0.5, unit_norm=False, dtype="float64")
    x1, x2 = split.extras["x1"], split.extras["x2"]
    inverse = torch.linalg.inv(x1.T @ x1)
    torch.testing.assert_close(x2.T @ x2, inverse @ inverse, rtol=1e-7, atol=1e-12)


def test_too_few_rows_give_the_best_approximation() -> None:
    """Eckart-Young: with n2 < rank X₁ the error of X₂ᵀX₂ is the largest eigenvalue left out."""
    random = torch.Generator().manual_seed(0)
    x1 = torch.randn(10, 12, generator=random, dtype=torch.float64)
    x2 = reverse(x1, torch.randn(4, 12, generator=random, dtype=torch.float64))
    pinv = torch.linalg.pinv(x1.T @ x1, rtol=1e-10)
    values = torch.linalg.eigvalsh(pinv @ pinv)
    error = torch.linalg.matrix_norm(x2.T @ x2 - pinv @ pinv, 2)
    torch.testing.assert_close(error, values[-5], rtol=1e-6, atol=0)


def test_balance_one_is_the_first_half_alone() -> None:
    split = alignment_reversing(n=32, dimension=32, balance=1)
    assert len(split.extras["x2"]) == 0
    assert bool(split.train.extras["first"].all())


def test_first_half_has_the_spiked_covariance() -> None:
    split = alignment_reversing(n=20_000, dimension=6, balance=1, unit_norm=False, dtype="float64")
    sample = split.extras["x1"].T @ split.extras["x1"] / 20_000
    expected = torch.ones(6, 6, dtype=torch.float64) + 0.5 * torch.eye(6, dtype=torch.float64)
    assert float((sample - expected).abs().max()) < 6 * 1.5 * (2 / 20_000) ** 0.5

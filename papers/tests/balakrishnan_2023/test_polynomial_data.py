"""Hidden polynomial: the range of v, the roots, the covariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contracts.dataset import DatasetContract, given, parts_of
from ntkscope.core import Split, UsageError
from ntkscope_papers.balakrishnan_2023.polynomials.data import choose_roots, hidden_polynomial, polynomial

SMALL = given(train=400, validation=50, test=50)


class TestHiddenPolynomial(DatasetContract):
    """The report's setting (ledger relu-poly-data): max |v| = 2, as many roots in [-2, 2] as the degree."""

    name = "hidden-polynomial"
    loader = staticmethod(hidden_polynomial)
    item_shape = (100,)
    sizes = given(train=8000, validation=1000, test=1000)

    def check_defining_property(self, split: Split) -> None:
        v = torch.cat([part.extras["v"] for part in parts_of(split).values()])
        assert float(v.abs().max()) == 2.0
        # 10,000 draws of N(0, σ²) scaled to a maximum of 2: σ = 2 / 3.89 on average (ledger: about 0.51)
        assert 0.44 < float(v.std()) < 0.58
        for part in parts_of(split).values():
            torch.testing.assert_close(part.x.double().sum(dim=1).float(), part.extras["v"], atol=1e-5, rtol=1e-5)
            y = np.prod(part.extras["v"].double().numpy()[:, None] - np.linspace(-2, 2, 7), axis=1)
            torch.testing.assert_close(part.y.double(), torch.from_numpy(y), atol=1e-4, rtol=1e-4)

    def test_isotropic_covariance(self, split: Split) -> None:
        x = split.train.x / split.extras["scale"]  # entries of the sample covariance have sd 1/sqrt(n): 6 sd
        assert float((x.T @ x / len(x) - torch.eye(100)).abs().max()) < 6 * (2 / len(x)) ** 0.5


class TestCorrelated(DatasetContract):
    name = "hidden-polynomial"
    loader = staticmethod(hidden_polynomial)
    options = given(correlated=True, degree=11, noise=0.01, train=20_000, validation=0, test=10)
    item_shape = (100,)

    def check_defining_property(self, split: Split) -> None:
        """Ledger relu-poly-corr-cov: covariance ∝ I + 11ᵀ, Var v = 10,100, top eigenvalue 101 along 1."""
        x = (split.train.x / split.extras["scale"]).double()
        values, vectors = torch.linalg.eigh(x.T @ x / len(x))
        assert abs(float(values[-1]) / 101 - 1) < 0.05  # sd of a variance: sqrt(2/20,000) = 1 %
        assert abs(float(vectors[:, -1].sum())) / 10 > 0.999
        assert abs(float(x.sum(dim=1).var()) / 10_100 - 1) < 0.05
        clean = self.make(noise=0.0)
        assert abs(float((split.train.y - clean.train.y).std()) / 0.01 - 1) < 0.05
        assert torch.equal(split.test.y, clean.test.y)


@pytest.mark.parametrize("roots", ["equispaced", "stratified"])
@pytest.mark.parametrize("degree", range(1, 21))
def test_exactly_degree_real_roots_in_the_range(degree: int, roots: str) -> None:
    """Each root has a cell of its own; even targets are even functions, stationary at 0 (ledger relu-poly-even-optimum)."""
    draws = torch.stack([choose_roots(roots, degree, seed) for seed in range(1 if roots == "equispaced" else 1000)])
    assert float(draws.abs().max()) <= 2
    torch.testing.assert_close(draws, -draws.flip(1), rtol=0, atol=1e-15)
    cell = 4 / degree
    if degree > 1:
        assert float(draws.diff(dim=1).min()) >= cell / 2 - 1e-12
    if roots == "stratified":
        place = (draws + 2) / cell - torch.arange(degree)  # where in its cell each root lies
        assert 0.25 - 1e-12 <= float(place.min()) <= float(place.max()) <= 0.75 + 1e-12
        assert len(draws.unique(dim=0)) == (1000 if degree > 1 else 1)
    if degree % 2 == 0:  # p′(0) = Σ_i Π_{j≠i} (0 - root_j), of every draw
        others = (-draws)[:, None, :].expand(-1, degree, -1).masked_fill(torch.eye(degree, dtype=torch.bool), 1.0)
        assert float(others.prod(dim=2).sum(dim=1).abs().max()) <= 1e-9
    v = torch.linspace(-2, 2, 51, dtype=torch.float64)
    targets = (v[:, None, None] - draws).prod(dim=2)
    torch.testing.assert_close(targets[:, 0], polynomial(v, draws[0]))
    assert float(targets.var(dim=0).min()) > 0


def test_unit_targets_are_raw_ones_divided_by_their_deviation() -> None:
    options = {"degree": 9, "dtype": "float64", "seed": 3, **SMALL}
    raw, unit = (hidden_polynomial(target=target, **options) for target in ("raw", "unit"))
    scale = raw.train.y.std(correction=0)
    for name, part in parts_of(unit).items():
        torch.testing.assert_close(part.y * scale, parts_of(raw)[name].y, rtol=1e-12, atol=1e-12)
        assert torch.equal(part.x, parts_of(raw)[name].x)
    noisy = hidden_polynomial(target="unit", noise=0.5, **options)  # noise is in the units of the targets
    assert 0.4 < float((noisy.train.y - unit.train.y).std()) < 0.6


@pytest.mark.parametrize(("degree", "low", "high"), [(3, 0.93, 0.98), (4, 0, 0.01), (5, 0.15, 0.45), (6, 0, 0.01)])
def test_linear_share_falls_with_the_degree(degree: int, low: float, high: float) -> None:
    """Ledger relu-poly-even-optimum: the best linear fit explains 96 % at degree 3, 29 % at 5, hardly any at even ones."""
    train = hidden_polynomial(degree=degree, dtype="float64").train
    assert low <= np.corrcoef(train.extras["v"].numpy(), train.y.numpy())[0, 1] ** 2 < high


def test_unknown_roots_are_refused() -> None:
    with pytest.raises(UsageError, match="expected 'equispaced' or 'stratified'"):
        choose_roots("random", 3, 0)

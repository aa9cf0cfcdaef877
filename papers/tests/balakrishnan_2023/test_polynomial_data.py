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
        roots = split.extras["roots"]
        torch.testing.assert_close(roots, torch.linspace(-2, 2, 7))
        v = torch.cat([part.extras["v"] for part in parts_of(split).values()])
        assert float(v.abs().max()) == 2.0
        # 10,000 draws of N(0, σ²) scaled to a maximum of 2: σ = 2 / 3.89 on average (ledger: about 0.51)
        assert 0.44 < float(v.std()) < 0.58
        for part in parts_of(split).values():
            torch.testing.assert_close(part.x.double().sum(dim=1).float(), part.extras["v"], atol=1e-5, rtol=1e-5)
            y = np.prod(part.extras["v"].double().numpy()[:, None] - np.linspace(-2, 2, 7), axis=1)
            torch.testing.assert_close(part.y.double(), torch.from_numpy(y), atol=1e-4, rtol=1e-4)

    def test_isotropic_covariance(self, split: Split) -> None:
        covariance, scale = split.extras["covariance"], split.extras["scale"]
        torch.testing.assert_close(covariance, scale**2 * torch.eye(100))
        x = split.train.x / scale  # standard normal again: entries of the sample covariance have sd 1/sqrt(n): 6 sd
        assert float((x.T @ x / len(x) - torch.eye(100)).abs().max()) < 6 * (2 / len(x)) ** 0.5


class TestCorrelated(DatasetContract):
    name = "hidden-polynomial"
    loader = staticmethod(hidden_polynomial)
    options = given(correlated=True, degree=11, noise=0.01, train=20_000, validation=10, test=10)
    item_shape = (100,)

    def check_defining_property(self, split: Split) -> None:
        """Ledger relu-poly-corr-cov: covariance ∝ I + 11ᵀ, Var v = 10,100, top eigenvalue 101 along 1."""
        scale = split.extras["scale"]
        torch.testing.assert_close(split.extras["covariance"], scale**2 * (torch.eye(100) + 1))
        x = (split.train.x / scale).double()
        values, vectors = torch.linalg.eigh(x.T @ x / len(x))
        assert abs(float(values[-1]) / 101 - 1) < 0.05  # sd of a variance: sqrt(2/20,000) = 1 %
        assert abs(float(vectors[:, -1].sum())) / 10 > 0.999
        assert abs(float(x.sum(dim=1).var()) / 10_100 - 1) < 0.05
        noise = split.train.y - split.train.extras["clean_y"]
        assert abs(float(noise.std()) / 0.01 - 1) < 0.05
        assert "clean_y" not in split.test.extras


class TestDirect(DatasetContract):
    name = "hidden-polynomial"
    loader = staticmethod(hidden_polynomial)
    options = given(direct=True, degree=18, validation=0, train=500, test=100)
    item_shape = (1,)

    def check_defining_property(self, split: Split) -> None:
        assert split.validation is None
        assert torch.equal(split.train.x[:, 0], split.train.extras["v"])
        hidden = self.make(direct=False)
        assert torch.equal(hidden.train.y, split.train.y)  # the same data, seen differently
        assert hidden.train.x.shape == (500, 100)


@pytest.mark.parametrize("degree", range(1, 21))
def test_exactly_degree_real_roots_in_the_range(degree: int) -> None:
    split = hidden_polynomial(degree=degree, dtype="float64", **SMALL)
    roots = split.extras["roots"].numpy()
    assert len(np.unique(roots)) == degree
    assert np.all(np.abs(roots) <= 2)
    if degree % 2 == 0:  # even targets are even functions, stationary at 0 (ledger relu-poly-even-optimum)
        assert abs(np.polyder(np.poly1d(roots, r=True))(0)) <= 1e-9


def test_random_roots_stay_inside_their_range() -> None:
    roots = [hidden_polynomial(roots="uniform", degree=9, root_range=(-1.5, 0.5), seed=s, **SMALL) for s in (0, 1)]
    first, second = (split.extras["roots"] for split in roots)
    for chosen in (first, second):
        assert float(chosen.min()) >= -1.5
        assert float(chosen.max()) <= 0.5
    assert not torch.equal(first, second)


@pytest.mark.parametrize("degree", range(1, 21))
def test_stratified_roots_have_a_cell_each_and_are_mirrored(degree: int) -> None:
    draws = torch.stack([choose_roots("stratified", degree, (-2, 2), seed) for seed in range(1000)])
    cell = 4 / degree
    place = (draws + 2) / cell - torch.arange(degree)  # where in its cell each root lies
    assert float(place.min()) >= 0.25 - 1e-12
    assert float(place.max()) <= 0.75 + 1e-12
    assert torch.equal(draws, -draws.flip(1))
    if degree > 1:
        assert float(draws.diff(dim=1).min()) >= cell / 2 - 1e-12
        assert len(draws.unique(dim=0)) == 1000
    if degree % 2 == 0:  # p′(0) = Σ_i Π_{j≠i} (0 - root_j), of every draw
        others = (-draws)[:, None, :].expand(-1, degree, -1).masked_fill(torch.eye(degree, dtype=torch.bool), 1.0)
        assert float(others.prod(dim=2).sum(dim=1).abs().max()) <= 1e-9
    v = torch.linspace(-2, 2, 51, dtype=torch.float64)
    targets = (v[:, None, None] - draws).prod(dim=2)
    torch.testing.assert_close(targets[:, 0], polynomial(v, draws[0]))
    assert float(targets.var(dim=0).min()) > 0


@pytest.mark.guard
@pytest.mark.parametrize("degree", range(3, 21))
def test_every_loaded_target_varies(degree: int) -> None:
    """Through the loader itself: distinct roots in range, p′(0) from the coefficients, variance of the targets."""
    for seed in range(100):
        split = hidden_polynomial(degree=degree, roots="stratified", seed=seed, dtype="float64", dimension=2,
                     train=60, validation=0, test=1)  # fmt: skip
        roots = split.extras["roots"].numpy()
        assert len(np.unique(roots)) == degree
        assert np.all(np.abs(roots) < 2)
        assert np.diff(roots).min() >= 2 / degree - 1e-12
        assert float(split.train.y.var()) > 0
        if degree % 2 == 0:
            assert abs(np.polyder(np.poly1d(roots, r=True))(0)) <= 1e-9


def test_unit_targets_are_raw_ones_divided_by_their_deviation() -> None:
    options = {"degree": 9, "roots": "stratified", "dtype": "float64", "seed": 3, **SMALL}
    raw, unit = (hidden_polynomial(target=target, **options) for target in ("raw", "unit"))
    scale = raw.train.y.std(correction=0)
    for name, part in parts_of(unit).items():
        torch.testing.assert_close(part.y * scale, parts_of(raw)[name].y, rtol=1e-12, atol=1e-12)
        assert torch.equal(part.x, parts_of(raw)[name].x)
    assert float(unit.train.y.std(correction=0)) == pytest.approx(1, abs=1e-12)
    assert float(unit.extras["target_scale"]) == pytest.approx(float(scale), rel=1e-6)
    assert "target_scale" not in raw.extras
    noisy = hidden_polynomial(target="unit", noise=0.5, **options)
    assert torch.equal(noisy.train.extras["clean_y"], unit.train.y)  # noise is in the units of the targets
    assert 0.4 < float((noisy.train.y - unit.train.y).std()) < 0.6


def test_given_roots_direction_and_leading_coefficient() -> None:
    direction = [1.0, -2.0, 0.5]
    split = hidden_polynomial(degree=2, roots=[0.5, -1.0], dimension=3, direction=direction, leading=3.0, **SMALL)
    v = split.test.x @ torch.tensor(direction)
    torch.testing.assert_close(split.test.y, 3 * (v + 1) * (v - 0.5), atol=1e-5, rtol=1e-5)


def test_linear_share_falls_with_the_degree() -> None:
    """Ledger relu-poly-even-optimum: best linear fit explains 96 % at degree 3, 29 % at 5, ~0 % at even ones."""
    share = {}
    for degree in (3, 4, 5, 6):
        split = hidden_polynomial(degree=degree, dtype="float64")
        v, y = split.train.extras["v"].numpy(), split.train.y.numpy()
        share[degree] = np.corrcoef(v, y)[0, 1] ** 2
    assert 0.93 < share[3] < 0.98
    assert 0.15 < share[5] < 0.45
    assert share[4] < 0.01
    assert share[6] < 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "units"}, "target='units'; expected one of 'raw', 'unit'"),
        ({"degree": 1, "roots": [0.0], "train": 1, "target": "unit"}, "do not vary"),
        ({"roots": "stratified", "root_range": (-1.0, 2.0)}, r"expected \(-r, r\)"),
        ({"degree": 0}, "degree=0; expected a whole number ≥ 1"),
        ({"roots": "random"}, "equispaced"),
        ({"degree": 3, "roots": [0.0, 1.0]}, "expected 3 numbers"),
        ({"degree": 1, "roots": [2.5]}, "expected 1 numbers"),
        ({"root_range": (1.0, -1.0)}, "low < high"),
        ({"bound": 0.0}, "bound=0.0"),
        ({"noise": -1.0}, "noise=-1.0"),
        ({"direction": [1.0]}, "direction has 1 entries"),
        ({"dimension": 2, "direction": [0.0, 0.0]}, "not all 0"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hidden_polynomial(**{**SMALL, **options})

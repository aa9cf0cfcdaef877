"""Index teachers and the Boolean cube: hidden directions, noise, parities."""

from __future__ import annotations

import itertools

import pytest
import torch

from contracts.dataset import DatasetContract, given, parts_of
from ntkscope.core import Split, UsageError
from ntkscope.data import load
from ntkscope.data.boolean_cube import parity
from ntkscope.data.index_teacher import LINKS, gaussian_moments


class TestSingleIndex(DatasetContract):
    """The paper's table 8 (ledger spectra-teacher, spectra-table8-setting)."""

    name = "index-teacher"
    item_shape = (1000,)
    sizes = given(train=2000, test=2000)

    def check_defining_property(self, split: Split) -> None:
        beta = split.extras["directions"][0].double()
        assert abs(float(beta.norm()) - 1) < 1e-6
        for part in parts_of(split).values():
            x = part.x.double()
            star = (torch.nn.functional.softplus(x @ beta) - 0.806059) / 0.271515**0.5
            clean = star + 0.2 * (x.square().sum(dim=1) / 1000 - 1)
            torch.testing.assert_close(part.extras["clean_y"].double(), clean, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(part.y, part.extras["clean_y"] + part.extras["noise"])
        # unit-variance teacher: 2,000 draws give the variance to 1.5 sqrt(2/2000) = 5 % (softplus is skewed): 4 sd
        assert abs(float(split.test.y.var()) - 1) < 0.2
        assert abs(float(split.test.y.mean())) < 0.1
        assert torch.equal(split.test.y, split.test.extras["clean_y"])  # noise-free, as the table implies
        assert abs(float(split.train.extras["noise"].std()) - 0.3) < 5 * 0.3 / (2 * 2000) ** 0.5


class TestMultipleIndex(DatasetContract):
    name = "index-teacher"
    options = given(directions=5, dimension=50, link="tanh", noisy_test=True, train=300, test=300)
    item_shape = (50,)

    def check_defining_property(self, split: Split) -> None:
        beta = split.extras["directions"].double()
        torch.testing.assert_close(beta @ beta.T, torch.eye(5, dtype=torch.float64), atol=1e-6, rtol=0)
        x = split.test.x.double()
        clean = (torch.tanh(x @ beta.T) / 0.394294**0.5).mean(dim=1)  # no quadratic term with several directions
        torch.testing.assert_close(split.test.extras["clean_y"].double(), clean, atol=1e-5, rtol=1e-5)
        assert abs(float(split.test.extras["noise"].std()) - 0.3) < 5 * 0.3 / 600**0.5


def test_literal_quadratic_term_shifts_the_mean_by_tau() -> None:
    centred, literal = (load("index-teacher", centred=c, dimension=200, dtype="float64") for c in (True, False))
    torch.testing.assert_close(literal.train.y - centred.train.y, torch.full((2000,), 0.2, dtype=torch.float64))
    none = load("index-teacher", tau=0, dimension=200, dtype="float64")
    assert float((none.train.y - centred.train.y).std()) < 3 * (2 * 0.2**2 / 200) ** 0.5


def test_changing_the_noise_leaves_inputs_and_teacher_alone() -> None:
    a, b = (load("index-teacher", noise=noise, dimension=20, train=50, test=10) for noise in (0.0, 1.0))
    assert torch.equal(a.train.x, b.train.x)
    assert torch.equal(a.extras["directions"], b.extras["directions"])
    assert torch.equal(a.train.y, b.train.extras["clean_y"])


@pytest.mark.parametrize(
    ("link", "mean", "variance"),
    [("softplus", 0.806059, 0.271515), ("tanh", 0.0, 0.394294), ("relu", 0.398942, 0.340845), ("quadratic", 1.0, 2.0)],
)
def test_link_moments(link: str, mean: float, variance: float) -> None:
    """Ledger spectra-activation-constants; ReLU: 1/sqrt(2π) and 1/2 - 1/2π."""
    got_mean, got_std = gaussian_moments(LINKS[link])
    assert abs(got_mean - mean) < 1e-6
    assert abs(got_std**2 - variance) < 1e-6


class TestWholeCube(DatasetContract):
    name = "boolean-cube"
    options = given(degree=3)
    item_shape = (7,)
    sizes = given(train=128, test=128)
    value_range = (-1.0, 1.0)

    def check_defining_property(self, split: Split) -> None:
        assert len(split.train.x.unique(dim=0)) == 128
        assert torch.equal(split.train.x.abs(), torch.ones(128, 7))
        subset = split.extras["monomials"][0].nonzero().flatten().tolist()
        assert len(subset) == 3
        for x, y in split.train:
            assert float(y) == (-1) ** sum(float(x[i]) < 0 for i in subset)

    def test_parities_are_orthogonal_characters(self, split: Split) -> None:
        x = split.train.x.double()
        subsets = [s for k in range(8) for s in itertools.combinations(range(7), k)]
        characters = torch.stack([parity(x, s) for s in subsets])
        assert torch.equal(characters @ characters.T, 128 * torch.eye(128, dtype=torch.float64))


class TestSampledCube(DatasetContract):
    name = "boolean-cube"
    options = given(dimension=30, degree=1, train=500, test=200)
    item_shape = (30,)
    sizes = given(train=500, test=200)

    def check_defining_property(self, split: Split) -> None:
        assert torch.equal(split.train.x.abs(), torch.ones(500, 30))
        assert float(split.train.x.mean(dim=0).abs().max()) < 5 / 500**0.5
        assert torch.equal(split.train.y, split.train.x[:, split.extras["monomials"][0]][:, 0])


def test_part_of_the_cube_is_disjoint_from_the_rest() -> None:
    split = load("boolean-cube", dimension=6, train=40)
    assert (len(split.train), len(split.test)) == (40, 24)
    assert len(torch.cat([split.train.x, split.test.x]).unique(dim=0)) == 64


def test_given_targets() -> None:
    mixed = load("boolean-cube", dimension=4, monomials={(): 0.5, (1,): 2.0, (0, 3): -1.0})
    x = mixed.train.x
    torch.testing.assert_close(mixed.train.y, 0.5 + 2 * x[:, 1] - x[:, 0] * x[:, 3])
    majority = load("boolean-cube", dimension=3, function=lambda x: x.sum(dim=1).sign())
    assert majority.train.y.tolist() == [-1, -1, -1, 1, -1, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("index-teacher", {"directions": 0}, "directions=0"),
        ("index-teacher", {"dimension": 3, "directions": 4}, "directions=4; expected a whole number ≥ 1 and ≤ 3"),
        ("index-teacher", {"link": "step"}, "link='step'; expected one of 'softplus'"),
        ("index-teacher", {"link": torch.zeros_like}, "the link is constant"),
        ("index-teacher", {"noise": -0.1}, "noise=-0.1"),
        ("boolean-cube", {"dimension": 0}, "dimension=0"),
        ("boolean-cube", {"degree": 8}, "degree=8; expected a whole number ≥ 0 and ≤ 7"),
        ("boolean-cube", {"monomials": {(0, 0): 1.0}}, "distinct coordinates"),
        ("boolean-cube", {"monomials": {(7,): 1.0}}, "from 0 to 6"),
        ("boolean-cube", {"monomials": {}}, "monomials is empty"),
        ("boolean-cube", {"monomials": {(0,): 1.0}, "function": torch.sum}, "at most one"),
        ("boolean-cube", {"train": 128}, "train=128"),
        ("boolean-cube", {"test": 10}, "without train"),
        ("boolean-cube", {"train": 100, "test": 29}, "test=29"),
        ("boolean-cube", {"function": torch.sin}, "expected one value each"),
    ],
)
def test_bad_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(name, **options)

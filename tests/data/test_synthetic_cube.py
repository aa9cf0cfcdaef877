"""The Boolean cube: parities, sizes, targets."""

from __future__ import annotations

import itertools

import pytest
import torch

from contracts.dataset import DatasetContract, given
from ntkscope.core import Split, UsageError
from ntkscope.data import load
from ntkscope.data.boolean_cube import parity


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
    ("options", "message"),
    [
        ({"degree": 8}, "degree=8; expected a whole number ≥ 0 and ≤ 7"),
        ({"monomials": {(0, 0): 1.0}}, "distinct coordinates"),
        ({"monomials": {(7,): 1.0}}, "from 0 to 6"),
        ({"monomials": {}}, "monomials is empty"),
        ({"monomials": {(0,): 1.0}, "function": torch.sum}, "at most one"),
        ({"train": 128}, "train=128"),
        ({"test": 10}, "without train"),
        ({"train": 100, "test": 29}, "test=29"),
        ({"function": torch.sin}, "expected one value each"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("boolean-cube", **options)

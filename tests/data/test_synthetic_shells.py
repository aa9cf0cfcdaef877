"""Orthant shells: radii, centres, which orthants are dense, sparse and empty."""

from __future__ import annotations

import pytest
import torch

from contracts.dataset import DatasetContract, given
from ntkscope.core import Split, UsageError
from ntkscope.data import load
from ntkscope.data.orthant_shells import neighbours, orthant_signs


def distances(split: Split, part_name: str, centre: float = 4.0) -> torch.Tensor:
    part = getattr(split, part_name)
    return (part.x - centre * split.extras["signs"][part.extras["orthant"]]).norm(dim=1)


class TestOrthantShells(DatasetContract):
    """The report's setting (ledger relu-orthant-data)."""

    name = "orthant-shells"
    item_shape = (7,)
    classes = 2
    sizes = given(train=127 * 200, test=128 * 200)
    balance = 0.0
    value_range = (-6.0, 6.0)

    def check_defining_property(self, split: Split) -> None:
        for name in ("train", "test"):
            part = getattr(split, name)
            torch.testing.assert_close(distances(split, name), (part.y + 1).float(), atol=1e-5, rtol=0)
            # a shell of radius 2 around ±4 never leaves its orthant
            signs = split.extras["signs"][part.extras["orthant"]]
            assert torch.equal(part.x.sign(), signs)
        counts = torch.bincount(split.train.extras["orthant"], minlength=128)
        assert torch.equal((counts == 0).nonzero().flatten(), split.extras["empty"])
        assert counts.sort().values.tolist() == [0] + [200] * 127
        assert len(split.extras["dense"]) == 127
        assert torch.bincount(split.test.extras["orthant"]).tolist() == [200] * 128

    def test_uniform_on_the_sphere(self, split: Split) -> None:
        offsets = split.test.x - 4 * split.extras["signs"][split.test.extras["orthant"]]
        directions = (offsets / offsets.norm(dim=1, keepdim=True)).double()
        n = len(directions)  # 25,600; E u = 0, E u uᵀ = I/7; entries of the mean have sd sqrt(1/7n): 5 sd
        assert float(directions.mean(dim=0).abs().max()) < 5 * (1 / (7 * n)) ** 0.5
        second = directions.T @ directions / n
        assert float((second - torch.eye(7, dtype=torch.float64) / 7).abs().max()) < 5 * (2 / (63 * n)) ** 0.5

    def test_raw_neighbour_of_an_unseen_point_is_on_an_outer_shell(self, split: Split) -> None:
        """Ledger relu-raw-distance-class1: match fraction <= 0.01 for class 0, >= 0.99 for class 1."""
        unseen = split.test.take(split.test.extras["orthant"] == split.extras["empty"][0])
        nearest = split.train.y[torch.cdist(unseen.x, split.train.x).argmin(dim=1)]
        assert float((nearest == 1).float().mean()) >= 0.99


class TestThreeDimensionsWithSparseOrthants(DatasetContract):
    name = "orthant-shells"
    options = given(dimension=3, empty=2, sparse=3, per_class=20, sparse_per_class=4, test_per_class=5, radii=(1, 2, 3))
    item_shape = (3,)
    classes = 3
    sizes = given(train=(3 * 20 + 3 * 4) * 3, test=8 * 3 * 5)
    balance = 1e-6

    def check_defining_property(self, split: Split) -> None:
        assert [len(split.extras[kind]) for kind in ("empty", "sparse", "dense")] == [2, 3, 3]
        everything = torch.cat([split.extras[kind] for kind in ("empty", "sparse", "dense")])
        assert torch.equal(everything.sort().values, torch.arange(8))
        counts = torch.bincount(split.train.extras["orthant"], minlength=8)
        assert counts[split.extras["sparse"]].tolist() == [12] * 3
        torch.testing.assert_close(distances(split, "train"), (split.train.y + 1).float(), atol=1e-5, rtol=0)


def test_listed_orthants_leave_the_others_points_alone() -> None:
    one = load("orthant-shells", dimension=3, empty=[5], per_class=6)
    two = load("orthant-shells", dimension=3, empty=[0, 5], sparse=[7], sparse_per_class=2, per_class=6)
    assert two.extras["empty"].tolist() == [0, 5]
    assert two.extras["sparse"].tolist() == [7]
    for orthant in (1, 2, 3, 4, 6):
        a, b = (split.train.x[split.train.extras["orthant"] == orthant] for split in (one, two))
        assert torch.equal(a, b)


def test_every_orthant_can_be_the_empty_one() -> None:
    chosen = {int(load("orthant-shells", dimension=2, per_class=1, seed=seed).extras["empty"]) for seed in range(40)}
    assert chosen == {0, 1, 2, 3}  # missed with probability 4 · 0.75^40 < 5e-5, and the seeds are fixed


def test_signs_and_neighbours() -> None:
    signs = orthant_signs(5)
    assert len(signs.unique(dim=0)) == 32
    for other in neighbours(11, 5):
        assert int((signs[11] != signs[other]).sum()) == 1
    assert len(neighbours(11, 5)) == 5


def test_swapped_orthants_exchange_training_labels_and_nothing_else() -> None:
    options = {"dimension": 3, "empty": [5], "sparse": [7], "per_class": 6, "sparse_per_class": 2, "test_per_class": 4}
    plain, swapped = load("orthant-shells", **options), load("orthant-shells", swapped=[2, 7], **options)
    where = plain.train.extras["orthant"]
    inside = (where == 2) | (where == 7)
    assert torch.equal(swapped.train.x, plain.train.x)
    assert torch.equal(swapped.train.y[inside], 1 - plain.train.y[inside])
    assert torch.equal(swapped.train.y[~inside], plain.train.y[~inside])
    assert torch.equal(swapped.train.extras["clean_y"], plain.train.y)
    assert swapped.extras["swapped"].tolist() == [2, 7]
    assert torch.equal(swapped.test.x, plain.test.x)
    assert torch.equal(swapped.test.y, plain.test.y)
    assert "swapped" not in plain.extras
    assert "clean_y" not in plain.train.extras
    again = load("orthant-shells", swapped=torch.tensor([7, 2]), **options)
    assert again.fingerprint == swapped.fingerprint
    assert load("orthant-shells", swapped=(), **options).fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimension": 2, "empty": [1], "swapped": [1]}, "lists an orthant that is empty.*leave them out"),
        ({"dimension": 2, "swapped": [4]}, "distinct orthant numbers from 0 to 3"),
        ({"dimension": 2, "empty": [1], "swapped": [0, 0]}, "distinct orthant numbers"),
        ({"dimension": 2, "empty": [1], "swapped": [0], "radii": (1, 2, 3)}, "with 3 radii; expected two classes"),
        ({"dimension": 2, "empty": 5}, "empty=5; expected a whole number ≥ 0 and ≤ 4"),
        ({"dimension": 2, "empty": [4]}, "distinct orthant numbers from 0 to 3"),
        ({"dimension": 2, "empty": [1, 1]}, "distinct orthant numbers"),
        ({"dimension": 2, "empty": [1], "sparse": [1]}, "lists an orthant that is empty"),
        ({"dimension": 2, "empty": 4}, "all 4 orthants are empty"),
        ({"radii": (1.0,)}, "radii"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("orthant-shells", **options)

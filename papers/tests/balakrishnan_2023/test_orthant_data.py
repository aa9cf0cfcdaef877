"""Orthant shells as the experiments use them: shares that agree between arms, orthants by distance, mirrored points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ntkscope.core import UsageError
from ntkscope_papers.balakrishnan_2023.orthants.data import (
    arm_data,
    distances_from,
    empty_orthant,
    held_out,
    mirrored_points,
    some_of_each,
    swapped_orthants,
)
from ntkscope_papers.balakrishnan_2023.orthants.measures import accuracy_by_orthant, by_distance, by_radius, parted
from ntkscope_papers.balakrishnan_2023.orthants.networks import OrthantNetworks

CONFIG = OrthantNetworks(dimension=4, per_class=10, test_per_class=5)


def test_a_fifth_of_every_class_and_orthant_is_held_out_and_alike_in_all_arms() -> None:
    plain = arm_data(CONFIG, 2, "plain")
    rest, held = held_out(plain.train, 0.2, 2)
    kinds = 2 * held.extras["orthant"] + held.y
    assert len(rest) == 240
    assert torch.bincount(kinds).tolist() == [0 if k // 2 == empty_orthant(plain) else 2 for k in range(32)]
    together = torch.cat([rest.x, held.x])
    assert len(torch.unique(together, dim=0)) == len(plain.train)
    for arm in ("near", "far"):
        other_rest, other_held = held_out(arm_data(CONFIG, 2, arm).train, 0.2, 2)
        assert torch.equal(other_held.x, held.x)
        assert torch.equal(other_rest.x, rest.x)
        assert not torch.equal(other_held.y, held.y)
    assert not torch.equal(held_out(plain.train, 0.2, 3)[1].x, held.x)


@pytest.mark.parametrize("seed", range(5))
def test_arms_exchange_the_labels_of_their_orthants_alone(seed: int) -> None:
    plain = arm_data(CONFIG, seed, "plain")
    empty = empty_orthant(plain)
    far_from = distances_from(empty, 4)
    for arm, allowed in (("near", far_from == 1), ("far", far_from >= 3)):
        chosen = swapped_orthants(arm, empty, 4, seed)
        assert len(chosen) == len(set(chosen)) == 4
        assert allowed[chosen].all()
        split = arm_data(CONFIG, seed, arm)
        differs = split.train.y != plain.train.y
        assert torch.equal(split.train.x, plain.train.x)
        assert torch.equal(differs, torch.isin(split.train.extras["orthant"], torch.tensor(chosen)))
        assert torch.equal(split.test.y, plain.test.y)


def test_too_few_distant_orthants_are_refused() -> None:
    with pytest.raises(UsageError, match="use dimension 4 or more"):
        swapped_orthants("far", 0, 3, 0)


def test_some_of_each_class_and_orthant() -> None:
    part = arm_data(CONFIG, 0, "near").train
    rows = some_of_each(part, 3, 0)
    chosen = part.take(rows)
    counts = torch.bincount(2 * chosen.extras["orthant"] + chosen.extras["clean_y"])
    assert set(counts.tolist()) == {0, 3}
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert len(some_of_each(part, 99, 0)) == len(part)


def test_mirrored_points_are_reflections_at_their_radii() -> None:
    points, radii = mirrored_points(CONFIG, 3, 0)
    assert points.shape == (63, 16, 4)
    torch.testing.assert_close(
        points.abs(), points[:, :1].abs().expand_as(points)
    )  # radius 2.5 stays inside its orthant
    torch.testing.assert_close((points[:, 15] - 4).norm(dim=1), radii)
    assert torch.equal(torch.unique(radii), torch.arange(5, 26, dtype=torch.float64) / 10)
    values = radii[:, None].expand(-1, 16)
    np.testing.assert_allclose(by_radius(values), np.tile(np.arange(5, 26) / 10, (16, 1)))


def test_accuracies_by_orthant_and_by_distance() -> None:
    split = arm_data(CONFIG, 1, "plain")
    empty = empty_orthant(split)
    radius = (split.test.x.abs() - 4).norm(dim=1)
    scores = torch.where(split.test.extras["orthant"] == empty, 1.5 - radius, radius - 1.5)  # wrong in the empty one
    own = accuracy_by_orthant(scores, split.test, 16)
    assert parted(own, empty) == {"empty": 0.0, "remaining": 1.0}
    accuracies = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    found = by_distance(accuracies, {"dense": [0], "sparse": [1], "empty": [2, 3, 4, 5, 6, 7]}, 3)
    assert found["dense"] == {"0": 0.9}
    assert found["sparse"] == {"1": 0.8}
    assert found["empty"] == pytest.approx({"1": 0.6, "2": (0.6 + 0.4 + 0.3) / 3, "3": 0.2})

"""The linear datamodeling score against scipy, and on an additive world where the right answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from ntkscope.core import NtkscopeError, numpy_generator
from ntkscope.measures import linear_datamodeling_score
from ntkscope.measures.datamodeling import datamodeling_difference, group_predictions, random_subsets, spearman


def world(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True scores (items, points), halves of the points, and noisy outputs that are additive in the points."""
    random = numpy_generator(seed, "test", "world")
    scores, masks = random.normal(size=(30, 50)), random_subsets(50, 80, seed=seed)
    actual = group_predictions(scores, masks)
    return scores, masks, actual + random.normal(size=actual.shape)


def test_each_item_is_scipys_rank_correlation() -> None:
    _, _, actual = world()
    predicted = np.round(actual + numpy_generator(1, "test", "noise").normal(size=actual.shape) * 3)  # with ties
    found = linear_datamodeling_score(predicted, actual)
    expected = [spearmanr(predicted[:, j], actual[:, j]).statistic for j in range(30)]
    assert np.allclose(found.items, expected, atol=1e-12)
    assert found.mean == pytest.approx(np.mean(expected), abs=1e-12)
    assert found.interval[0] < found.mean < found.interval[1]
    assert "30 test items" in str(found)


def test_the_truth_scores_higher_than_chance_and_the_interval_says_so() -> None:
    scores, masks, actual = world()
    truth = linear_datamodeling_score(group_predictions(scores, masks), actual)
    chance = linear_datamodeling_score(
        group_predictions(numpy_generator(9, "test").normal(size=scores.shape), masks), actual
    )
    assert truth.mean > 0.9
    assert abs(chance.mean) < 4 / np.sqrt(30 * 79)  # ρ of 80 independent ranks has variance 1/79
    gap, (low, high) = datamodeling_difference(truth, chance)
    assert 0.5 < low < gap < high


def test_subsets_have_one_size_and_follow_the_seed() -> None:
    masks = random_subsets(101, 40, seed=4)
    assert set(masks.sum(1).tolist()) == {50}
    assert np.array_equal(masks, random_subsets(101, 40, seed=4))
    assert not np.array_equal(masks, random_subsets(101, 40, seed=5))
    assert 0.3 < masks.mean(0).min() * 2 < masks.mean(0).max() * 2 < 1.7
    assert np.array_equal(random_subsets(101, 10, seed=4), masks[:10])


def test_predictions_that_order_nothing_score_zero() -> None:
    _, _, actual = world()
    predicted = actual.copy()
    predicted[:, 3] = 7.0
    found = linear_datamodeling_score(predicted, actual)
    assert found.items[3] == 0
    assert found.mean == pytest.approx(29 / 30)
    with pytest.raises(NtkscopeError, match="undefined"):
        spearman(predicted[:, 3], actual[:, 3])
    with pytest.raises(NtkscopeError, match="undefined"):
        linear_datamodeling_score(actual, predicted)


def test_subsets_that_are_none_are_refused() -> None:
    for points, share in ((4, 0.01), (4, 1.0)):
        with pytest.raises(NtkscopeError, match="none empty"):
            random_subsets(points, 3, share=share)
    with pytest.raises(NtkscopeError, match="expected \\(items, points\\)"):
        group_predictions(np.zeros((2, 3)), np.ones((1, 4), dtype=bool))

"""Match fraction: against a loop over pairs, ties, scales, the orthant data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ntkscope.core import numpy_generator
from ntkscope.data import load
from ntkscope_papers.balakrishnan_2023.orthants import measures
from ntkscope_papers.balakrishnan_2023.orthants.measures import match_fraction, matches


def naive(train: np.ndarray, y: np.ndarray, test: np.ndarray, y_test: np.ndarray) -> list[float]:
    found = []
    for point, label in zip(test, y_test, strict=True):
        distances = [float(((point - other) ** 2).sum()) for other in train]
        nearest = [k for k, distance in enumerate(distances) if distance == min(distances)]
        found.append(sum(y[k] == label for k in nearest) / len(nearest))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_against_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes; every other problem is on a coarse grid, where ties are common."""
    random = numpy_generator(seed, "matching")
    n, m, d, classes = (int(random.integers(1, limit)) for limit in (30, 30, 5, 4))
    train, test = random.normal(size=(n, d)), random.normal(size=(m, d))
    if seed % 2:
        train, test = np.round(train), np.round(test)
    y, y_test = random.integers(0, classes, n), random.integers(0, classes, m)
    expected = naive(train, y, test, y_test)
    monkeypatch.setattr(measures, "BLOCK", 40)  # several blocks
    assert matches(train, y, test, y_test).tolist() == pytest.approx(expected, abs=1e-12)
    assert match_fraction(train, y, test, y_test) == pytest.approx(np.mean(expected), abs=1e-12)
    order = random.permutation(n)
    assert match_fraction(train[order], y[order], test, y_test) == pytest.approx(np.mean(expected), abs=1e-12)
    for scale in (1e-300, 1e150, 1e307):
        assert matches(train * scale, y, test * scale, y_test).tolist() == pytest.approx(expected, abs=1e-12)
    singles = [torch.from_numpy(part).float() for part in (train, test)]
    assert match_fraction(singles[0], y, singles[1], torch.from_numpy(y_test)) == pytest.approx(
        np.mean(naive(singles[0].double().numpy(), y, singles[1].double().numpy(), y_test)), abs=1e-12
    )


def test_dead_features_are_undecided_and_do_not_go_by_the_order_of_the_points() -> None:
    """All features 0: every training point is nearest, of which one in four has class 1."""
    dead = np.zeros((8, 3))
    assert match_fraction(dead, [0, 0, 0, 0, 0, 0, 1, 1], dead[:2], [1, 1]) == 0.25


def test_raw_distances_in_the_empty_orthant() -> None:
    """Ledger relu-raw-distance-class1: the outer shell of a neighbour is nearest, for both classes."""
    split = load("orthant-shells", dimension=5)
    unseen = split.test.take(split.test.extras["orthant"] == split.extras["empty"][0])
    shares = [
        match_fraction(split.train.x, split.train.y, unseen.x[unseen.y == label], unseen.y[unseen.y == label])
        for label in (0, 1)
    ]
    assert shares[0] <= 0.02
    assert shares[1] >= 0.98
    folded = match_fraction(split.train.x.abs(), split.train.y, unseen.x.abs(), unseen.y)
    assert folded >= 0.95  # folded, all orthants are one

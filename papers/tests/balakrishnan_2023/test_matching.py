"""Matches of classes: against a loop over pairs, ties, scales, the orthant data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ntkscope.core import numpy_generator
from ntkscope.data import load
from ntkscope_papers.balakrishnan_2023.orthants import measures
from ntkscope_papers.balakrishnan_2023.orthants.measures import class_matches, matches


def naive(train: np.ndarray, y: np.ndarray, test: np.ndarray, y_test: np.ndarray) -> list[float]:
    found = []
    for point, label in zip(test, y_test, strict=True):
        distances = [float(((point - other) ** 2).sum()) for other in train]
        nearest = [k for k, distance in enumerate(distances) if distance == min(distances)]
        found.append(sum(y[k] == label for k in nearest) / len(nearest))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_against_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes; every other problem is on a coarse grid, where ties are common, and every third in single precision."""
    random = numpy_generator(seed, "matching")
    n, m, d, classes = (int(random.integers(1, limit)) for limit in (30, 30, 5, 4))
    train, test = (torch.from_numpy(random.normal(size=(count, d))) for count in (n, m))
    if seed % 2:
        train, test = train.round(), test.round()
    if seed % 3 == 0:
        train, test = train.float(), test.float()
    y, y_test = (torch.from_numpy(random.integers(0, classes, count)) for count in (n, m))
    expected = naive(train.double().numpy(), y.numpy(), test.double().numpy(), y_test.numpy())
    monkeypatch.setattr(measures, "BLOCK", 40)  # several blocks
    order = torch.from_numpy(random.permutation(n))
    assert matches(train[order], y[order], test, y_test).tolist() == pytest.approx(expected, abs=1e-12)
    for scale in (1e-300, 1e150, 1e307):
        found = matches(train.double() * scale, y, test.double() * scale, y_test)
        assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_raw_distances_in_the_empty_orthant() -> None:
    """Ledger relu-raw-distance-class1: the outer shell of a neighbour is nearest, for both classes."""
    split = load("orthant-shells", dimension=5)
    empty = int(split.extras["empty"][0])
    shares = class_matches(split.train.x, split.test.x, split, empty)
    assert shares[0] <= 0.02
    assert shares[1] >= 0.98
    folded = class_matches(split.train.x.abs(), split.test.x.abs(), split, empty)
    assert min(folded) >= 0.9  # folded, all orthants are one

"""Matching: does the nearest training point, in some features, have the same class?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.arguments import Labels, labels_of, tensor_of

BLOCK = 2**22  # distances held at a time


def match_fraction(train_features: Any, y_train: Any, test_features: Any, y_test: Any) -> float:
    """The share of test points whose nearest training point, by Euclidean distance of features, has their class.

    Features are (n, d), labels whole numbers from 0. For the share of one class hand over that class's test points. Where
    several training points are exactly nearest (dead units give whole clouds the same features), the share of them that has the
    class counts, the expectation of a random choice: the order of the training points does not matter. Cost: O(n m d), on
    the device of the features. Reference: Balakrishnan (2023), Table 2.

    >>> match_fraction([[0.0], [1.0]], [0, 1], [[0.2], [0.9], [0.8]], [0, 1, 0])
    0.6666666666666666
    """
    return float(matches(train_features, y_train, test_features, y_test).mean())


def matches(train_features: Any, y_train: Any, test_features: Any, y_test: Any) -> Float64[np.ndarray, " m"]:
    """Of each test point, whether its nearest training point has its class: 1 or 0, or between them where several are nearest.

    >>> matches([[0.0], [0.0], [3.0]], [0, 1, 1], [[1.0], [2.0]], [0, 1]).tolist()
    [0.5, 1.0]
    """
    train, own = _points(train_features, y_train, "train")
    test, asked = _points(test_features, y_test, "test")
    if train.shape[1] != test.shape[1]:
        raise UsageError(
            f"got {train.shape[1]} training features and {test.shape[1]} test features; expected the same layer's of both"
        )
    test = test.to(train.device)
    # Distances do not overflow or vanish when the largest feature is about 1; a power of two changes no rounding.
    largest = float(torch.maximum(train.abs().max(), test.abs().max()))
    factor = math.ldexp(1.0, max(-1000, min(1000, -math.frexp(largest)[1])))
    train, test = train * factor, test * factor
    classes, wanted = (torch.from_numpy(labels).to(train.device) for labels in (own, asked))
    found = []
    for start in range(0, len(test), rows := max(1, BLOCK // len(train))):
        # Differences, not norms and products: equal features must be at equal distances for a tie to be seen as one.
        distance = torch.cdist(test[start : start + rows], train, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distance == distance.min(dim=1, keepdim=True).values
        same = nearest & (wanted[start : start + rows, None] == classes)
        found.append(same.sum(1).double() / nearest.sum(1))
    return torch.cat(found).cpu().numpy()


def _points(features: Any, y: Any, which: str) -> tuple[Tensor, Labels]:
    points = tensor_of(features, f"{which}_features", 2)
    return points, labels_of(y, len(points))

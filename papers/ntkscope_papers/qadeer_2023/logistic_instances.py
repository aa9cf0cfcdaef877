"""Random nested logistic fits whose signed scores peak at the corners of training cells: what Theorem 5.1 asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ntkscope.core import numpy_generator
from ntkscope.measures.logistic_bounds import LogisticBounds, logistic_bounds
from ntkscope.surrogates import KernelLogistic

CELLS, TAU, RIDGE, FLIPPED = (3, 2), (2, 3), 1e-3, 0.4
NODES = (slice(None, None, TAU[0]), slice(None, None, TAU[1]))


def corner_instances(count: int, seed: int) -> dict[str, Any]:
    """Fits of degree 1 and 2 to half-planes with flipped labels: how often the corner condition holds, and both theorems.

    Where a network separates the classes its signed score is largest beside the boundary, inside a cell. So training labels
    are flipped at random, which leaves misclassified corners; the other test nodes have the labels the first fit gives them.
    """
    random = numpy_generator(seed, "corner instances")
    axes = [np.linspace(-1, 1, n * t + 1) for n, t in zip(CELLS, TAU)]
    x1, x2 = np.meshgrid(*axes, indexing="ij")
    found: list[LogisticBounds] = []
    while len(found) < count:
        angle, shift = random.uniform(0, 2 * np.pi), random.uniform(-0.7, 0.7)
        labels = np.cos(angle) * x1 + np.sin(angle) * x2 > shift
        own = labels[NODES] ^ (random.random(labels[NODES].shape) < FLIPPED)
        if 0 < own.mean() < 1:
            found.append(_fitted(x1, x2, own.astype(int)))
    said = [one for one in found if one.theorem_5_1 is not None]
    second = [one for one in found if one.theorem_5_2 is not None]
    return {
        "drawn": count,
        "corner": len(said),
        "5.1 holds": sum(bool(one.theorem_5_1) for one in said),
        "5.1 holds as printed": sum(bool(one.theorem_5_1_printed) for one in said),
        "matching": len(second),
        "5.2 holds": sum(bool(one.theorem_5_2) for one in second),
        "5.2 holds as printed": sum(bool(one.theorem_5_2_printed) for one in second),
    }


def _fitted(x1: np.ndarray, x2: np.ndarray, own_labels: np.ndarray) -> LogisticBounds:
    columns = np.stack([np.ones_like(x1), x1, x2, x1**2, x1 * x2], -1)
    scores = []
    for width in (3, 5):
        phi = columns[..., :width].reshape(-1, width)
        own = columns[NODES][..., :width].reshape(-1, width)
        solver = KernelLogistic(2 * RIDGE / len(own), multi_class="ovr", fit_intercept=False)
        fitted = solver.fit(torch.from_numpy(own @ own.T), own_labels.ravel())
        scores.append(fitted.decision_function(torch.from_numpy(phi @ own.T)).reshape(x1.shape))
    labels = (scores[0] > 0).astype(int)
    labels[NODES] = own_labels
    return logistic_bounds(scores[0], scores[1], labels, refinement=TAU)

"""What is measured of a function on orthant shells: accuracy by orthant, matches of classes, radial profiles, folding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ntkscope.core import Part, Split
from ntkscope.core.arguments import Labels, labels_of, tensor_of
from ntkscope_papers.balakrishnan_2023.orthants.data import distances_to, mirrored_points, radii_probed
from ntkscope_papers.balakrishnan_2023.orthants.folding import fold_profile
from ntkscope_papers.balakrishnan_2023.orthants.networks import logits

Score = Callable[[Tensor], Tensor]  # inputs (n, d) to scores (n,); class 1 above 0
BLOCK = 2**22  # distances held at a time


def accuracy_by_orthant(scores: Tensor, part: Part, orthants: int) -> Float64[np.ndarray, " orthants"]:
    """The share of items of each orthant on the right side of 0; a score of exactly 0 counts as class 0."""
    where = part.extras["orthant"]
    right = ((scores.cpu() > 0) == (part.y == 1)).double()
    return (torch.bincount(where, right, orthants) / torch.bincount(where, minlength=orthants)).numpy()


def parted(accuracies: Float64[np.ndarray, " orthants"], empty: int) -> dict[str, float]:
    """Accuracy in the empty orthant and in the others, which have as many test items each."""
    rest = np.delete(accuracies, empty)
    return {"empty": float(accuracies[empty]), "remaining": float(rest.mean())}


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


def class_matches(train: Tensor, test: Tensor, split: Split, empty: int) -> list[float]:
    """Of each class: the share of test items in the empty orthant whose nearest training item in these features shares it."""
    y, there = split.test.y, split.test.extras["orthant"] == empty
    found = []
    for label in (0, 1):
        rows = (there & (y == label)).nonzero()[:, 0]
        found.append(match_fraction(train, split.train.y, test[rows.to(test.device)], torch.full((len(rows),), label)))
    return found


def hidden(model: nn.Module, x: Tensor) -> Tensor:
    """The activations of the last hidden layer, after its ReLU."""
    first = next(model.parameters())
    below = nn.Sequential(*list(model.children())[:-1])
    with torch.no_grad():
        return torch.cat([below(piece.to(first.device, first.dtype)) for piece in x.split(16384)])


def matched(model: nn.Module, split: Split, empty: int) -> dict[str, list[float]]:
    """Matches in the last hidden layer, and in the logit alone."""
    parts = [split.train.x, split.test.x]
    features = {"hidden": [hidden(model, x) for x in parts], "logit": [logits(model, x)[:, None] for x in parts]}
    return {name: class_matches(train, test, split, empty) for name, (train, test) in features.items()}


def radial_scores(score: Score, config: Any, seed: int) -> tuple[Float[Tensor, "points orthants"], Tensor]:
    """Scores at mirrored points around all centres, and the points' radii; the same directions for every function."""
    points, radii = mirrored_points(config, config.directions, seed)
    return score(points.flatten(0, 1)).reshape(points.shape[:2]).cpu(), radii


def by_radius(values: Float[Tensor, "points orthants"]) -> Float64[np.ndarray, "orthants radii"]:
    """The mean over the directions at each radius, in each orthant."""
    return values.double().unflatten(0, (len(radii_probed()), -1)).mean(1).T.numpy()


def folding(
    scores: Float[Tensor, "points orthants"], radii: Tensor, empty: int
) -> dict[str, list[float | None] | list[str]]:
    """`fold_profile` from the empty orthant and over all pairs of orthants; None where there is no residual, with reasons."""
    found: dict[str, Any] = {}
    for name, at in (("empty", empty), ("all", None)):
        profile = fold_profile(scores.numpy(), (radii * 10).round().long().numpy(), at)
        found[name] = [None if np.isnan(value) else round(value, 5) for value in profile]
        reasons = sorted({reason for reason in profile.reasons if reason})
        if reasons:
            found[f"{name}: no value where"] = reasons
    return found


def by_distance(
    accuracies: Float64[np.ndarray, " orthants"], kinds: Mapping[str, Sequence[int]], dimension: int
) -> dict[str, dict[str, float]]:
    """Accuracies of dense, sparse and empty orthants by how many signs they are from the nearest dense one."""
    far = distances_to(kinds["dense"], dimension)
    found: dict[str, dict[str, float]] = {}
    for kind, orthants in kinds.items():
        own = np.array(sorted(int(orthant) for orthant in orthants), dtype=np.int64)
        steps = sorted(set(far[own].tolist()))
        found[kind] = {str(step): float(accuracies[own[far[own] == step]].mean()) for step in steps}
    return found

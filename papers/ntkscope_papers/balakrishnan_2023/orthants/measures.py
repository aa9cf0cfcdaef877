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


def matches(
    train: Float[Tensor, "n d"], y_train: Tensor, test: Float[Tensor, "m d"], y_test: Tensor
) -> Float64[np.ndarray, " m"]:
    """Of each test point, whether its nearest training point, by Euclidean distance of features, has its class: 1 or 0.

    Where several training points are exactly nearest (dead units give whole clouds the same features), the share of them that
    has the class, the expectation of a random choice: the order of the training points does not matter. Cost: O(n m d), on
    the device of the features. Reference: Balakrishnan (2023), Table 2.

    >>> y = torch.tensor([0, 1, 1])
    >>> matches(torch.tensor([[0.0], [0.0], [3.0]]), y, torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])).tolist()
    [0.5, 1.0]
    """
    train, test = train.double(), test.double().to(train.device)
    # Distances do not overflow or vanish when the largest feature is about 1; a power of two changes no rounding.
    largest = float(torch.maximum(train.abs().max(), test.abs().max()))
    factor = math.ldexp(1.0, max(-1000, min(1000, -math.frexp(largest)[1])))
    train, test = train * factor, test * factor
    classes, wanted = y_train.to(train.device), y_test.to(train.device)
    found = []
    for start in range(0, len(test), rows := max(1, BLOCK // len(train))):
        # Differences, not norms and products: equal features must be at equal distances for a tie to be seen as one.
        distance = torch.cdist(test[start : start + rows], train, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distance == distance.min(dim=1, keepdim=True).values
        same = nearest & (wanted[start : start + rows, None] == classes)
        found.append(same.sum(1).double() / nearest.sum(1))
    return torch.cat(found).cpu().numpy()


def class_matches(train: Tensor, test: Tensor, split: Split, empty: int) -> list[float]:
    """Of each class: the share of test items in the empty orthant whose nearest training item in these features shares it."""
    y, there = split.test.y, split.test.extras["orthant"] == empty
    found = []
    for label in (0, 1):
        rows = there & (y == label)
        found.append(float(matches(train, split.train.y, test[rows.to(test.device)], y[rows]).mean()))
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
        profile, why = fold_profile(scores.numpy(), (radii * 10).round().long().numpy(), at)
        found[name] = [None if np.isnan(value) else round(value, 5) for value in profile.tolist()]
        reasons = sorted({reason for reason in why if reason})
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
